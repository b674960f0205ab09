#!/usr/bin/env bash
# A figure of a paper, drawn from the trained rows of a table; what is missing is prepared and trained first. Interrupted, it resumes.
set -euo pipefail

if [[ $# -lt 2 || $1 == -* || $2 == -* ]]; then
    echo "usage: $0 PAPER N [--out FILE] [--sentence N] [--heads 1,2] [FLAG...]" >&2
    echo "li2021 3: heads by t-SNE; li2021 4: logical inference; zhang2021 5: attention maps; wang2021 5: learning curves;" >&2
    echo "li2022 3: sentence lengths. FLAG: any flag of scripts/table.sh, such as --raw DIR, --data NAME, --size small, --rows a,b." >&2
    echo "--out: picture to write (default: figures/PAPER-figureN.png in the folder of runs, \$FAIRSEQ_DIVERSE_RUNS or runs/)." >&2
    echo "--sentence and --heads are for zhang2021 5: a sentence of the test split (default: the paper's, else the first) and heads." >&2
    exit 2
fi
paper=$1 figure=$1-figure$2
case "$1 $2" in
    "li2021 3") number=1 rows=baseline,subspace,position,output ;;
    "li2021 4") number=figure4 rows=baseline,disagreement,aggregation,both ;;
    "zhang2021 5") number=1 rows=lpea-rhe,rel-pos,localness ;;
    "wang2021 5") number=5 rows=de-en-lite,de-en-ea-lite ;;
    "li2022 3") data=(iwslt16_de_en wmt17_en_de wmt17_en_cs) ;;
    *) echo "$0: no Figure $2 of $1; there are li2021 3 and 4, zhang2021 5, wang2021 5, li2022 3" >&2 && exit 2 ;;
esac
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runs=${FAIRSEQ_DIVERSE_RUNS:-runs}
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$runs
out=$runs/figures/$figure.png

given=() shared=() seeds=() drawing=() from=(--archives "$runs/archives") checks=()
while [[ $# -gt 0 ]]; do
    [[ $1 != --*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
    case $1 in
        --out) out=${2:?$1: a file is missing} && shift ;;
        --sentence | --heads) drawing+=("$1" "${2:?$1: a number is missing}") && shift ;;
        --rows) rows=${2:?$1: a name is missing} && shift ;;
        --data)
            data=("${2:?$1: a name is missing}")
            [[ ! -f $root/configs/data/$2_en_de.yaml ]] || data=("$2_en_de")
            given+=(--data "${data[0]}") shared+=(--data "${data[0]}") && shift
            ;;
        --archives | --raw) from=("$1" "${2:?$1: a folder is missing}") given+=("$1" "$2") && shift ;;
        --no-download | --accept-counts | --strict-counts) checks+=("$1") given+=("$1") ;;
        --gpus-of-paper)
            given+=("$1") shared+=("$1")
            [[ ! ${2:-} =~ ^[0-9]+$ ]] || { given+=("$2") shared+=("$2") && shift; }
            ;;
        --size | --set) given+=("$1" "${2:?$1: a value is missing}") shared+=("$1" "$2") && shift ;;
        --seeds) given+=("$1" "${2:?$1: a number is missing}") seeds=("$1" "$2") && shift ;;
        *) given+=("$1") ;;
    esac
    shift
done

if [[ $paper == li2022 ]]; then # nothing to train
    folders=() missing=()
    for name in "${data[@]}"; do
        [[ -d $runs/data/$name || ! -d $name ]] || { folders+=("$name") && continue; }
        folders+=("$runs/data/$name")
        [[ -d $runs/data/$name ]] || missing+=("$name")
    done
    [[ ${#missing[@]} -eq 0 ]] || fairseq-diverse prepare "${missing[@]}" "${from[@]}" "${checks[@]}" --workers "$(nproc)"
    exec fairseq-diverse plot lengths --data "${folders[@]}" --out "$out"
fi

"$root/scripts/table.sh" "$paper" "$number" --rows "$rows" "${given[@]}" ||
    { echo "$0: nothing drawn: a row failed, see above" >&2 && exit 1; }
table=$paper-table$number
[[ $number != figure* ]] || table=$paper-$number
if [[ $paper == wang2021 ]]; then # of each grid the point with the lowest validation loss
    rows=$(fairseq-diverse report "$table" --rows "$rows" "${shared[@]}" --best --format json |
        python -c 'import json, sys; print(",".join(row["row"] for row in json.load(sys.stdin)["rows"]))')
fi
plan=$(fairseq-diverse run "$table" --rows "$rows" "${shared[@]}" "${seeds[@]}" --dry-run)
trained_on=$(sed -n 's/.*fairseq_cli.train \(\S*\) .*/\1/p' <<<"$plan" | awk 'NR == 1')
found=$(sed -n 's/^# \(.*\) seed [0-9]*: \(.*\), \([^,]*\)$/\1\t\2\t\3/p' <<<"$plan") # name, stage, folder
if unfinished=$(grep -v $'\tdone\t' <<<"$found"); then
    echo "$0: not finished: $(cut -f 1 <<<"$unfinished" | sort -u | paste -sd,); call it again when they are" >&2
    exit 1
fi
named=() logs=()
while IFS=$'\t' read -r name _ folder; do
    label=$(sed 's/-[a-z]*=.*//' <<<"$name")
    logs+=("$label=$folder")
    [[ " ${named[*]} " == *" $label="* ]] || named+=("$label=$(echo "$folder"/checkpoints/checkpoint_*.pt)") # of its first seed
done <<<"$found"

case $figure in
    li2021-figure3) fairseq-diverse plot head-map "${named[@]}" --data "$trained_on" --out "$out" ;;
    li2021-figure4) fairseq-diverse accuracy "${named[@]}" --data "$trained_on" --out "$out" && echo "$out" ;;
    wang2021-figure5) fairseq-diverse plot curves "${logs[@]}" --out "$out" ;;
    zhang2021-figure5)
        if [[ " ${drawing[*]} " != *" --sentence "* ]]; then
            theirs='Relations between Obama and Netanyahu have been strained for years.'
            number=$(grep -nxF -m 1 "$theirs" "$trained_on/text/test.en" 2>/dev/null | cut -d: -f 1) || number=1
            drawing+=(--sentence "$number")
        fi
        fairseq-diverse plot attention --path "${named[@]}" --data "$trained_on" --layer 1 "${drawing[@]}" --out "$out"
        ;;
esac
