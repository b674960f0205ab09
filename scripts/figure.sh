#!/usr/bin/env bash
# A figure of a paper, drawn from the trained rows of a table; what is missing is prepared and trained first. Interrupted, it resumes.
set -euo pipefail

if [[ $# -lt 2 || $1 == -* || $2 == -* ]]; then
    echo "usage: $0 PAPER N [--out FILE] [--sentence N] [--heads 1,2] [FLAG...]" >&2
    echo "li2021 3: heads by t-SNE; li2021 4: logical inference; zhang2021 5: attention maps; wang2021 5: learning curves;" >&2
    echo "li2022 3: sentence lengths. FLAG is any of scripts/table.sh: --raw DIR, --data NAME, --size small, --rows a,b, ..." >&2
    echo "The picture is figures/PAPER-figureN.png in the folder of runs (\$FAIRSEQ_DIVERSE_RUNS, default runs/), or FILE." >&2
    echo "--sentence (of the test split) and --heads are for zhang2021 5; its own sentence is found where the split has it." >&2
    exit 2
fi
paper=$1 figure=$1-figure$2
case "$1 $2" in
    "li2021 3") tables=(1) rows=baseline,subspace,position,output ;;
    "li2021 4") tables=(figure4) rows=baseline,disagreement,aggregation,both ;;
    "zhang2021 5") tables=(1) rows=lpea-rhe,rel-pos,localness ;;
    "wang2021 5") tables=(5) rows=de-en-lite,de-en-ea-lite ;;
    "li2022 3") tables=(3 4 5) rows=heads-8 ;;
    *) echo "$0: no Figure $2 of $1; there are li2021 3 and 4, zhang2021 5, wang2021 5, li2022 3" >&2 && exit 2 ;;
esac
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runs=${FAIRSEQ_DIVERSE_RUNS:-runs}
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$runs
out=$runs/figures/$figure.png

given=() shared=() seeds=() drawing=()
while [[ $# -gt 0 ]]; do
    case $1 in
        --out) out=${2:?$1: a file is missing} && shift ;;
        --sentence | --heads) drawing+=("$1" "${2:?$1: a number is missing}") && shift ;;
        --rows) rows=${2:?$1: a name is missing} && shift ;;
        --data)
            [[ ${#tables[@]} == 1 ]] || tables=(3) # one data set, whatever the table
            data=${2:?$1: a name is missing}
            [[ ! -f $root/configs/data/${data}_en_de.yaml ]] || data=${data}_en_de
            given+=(--data "$data") shared+=(--data "$data") && shift
            ;;
        --size | --set) given+=("$1" "${2:?$1: a value is missing}") shared+=("$1" "$2") && shift ;;
        --seeds) given+=("$1" "${2:?$1: a number is missing}") seeds=("$1" "$2") && shift ;;
        *) given+=("$1") ;;
    esac
    shift
done

runs_of() { # of a table: NAME, STAGE and FOLDER of each run of its rows, between tabs
    fairseq-diverse run "$paper-$1" --rows "$rows" "${shared[@]}" "${seeds[@]}" --dry-run |
        sed -n 's/^# \(.*\) seed [0-9]*: \(.*\), \([^,]*\)$/\1\t\2\t\3/p'
}
data_of() {
    fairseq-diverse run "$paper-$1" --rows "$rows" "${shared[@]}" --dry-run |
        sed -n 's/.*fairseq_cli.train \(\S*\) .*/\1/p' | awk 'NR == 1'
}

if [[ $paper == li2022 ]]; then # nothing to train
    folders=()
    for table in "${tables[@]}"; do
        "$root/scripts/table.sh" "$paper" "$table" --rows "$rows" "${given[@]}" --dry-run >&2
        folders+=("$(data_of "table$table")")
    done
    exec fairseq-diverse plot lengths --data "${folders[@]}" --out "$out"
fi

"$root/scripts/table.sh" "$paper" "${tables[0]}" --rows "$rows" "${given[@]}" ||
    { echo "$0: nothing drawn: a row failed, see above" >&2 && exit 1; }
table=${tables[0]}
[[ $table == figure* ]] || table=table$table
if [[ $paper == wang2021 ]]; then # of each grid the point with the lowest validation loss
    rows=$(fairseq-diverse report "$paper-$table" --rows "$rows" "${shared[@]}" --best --format json |
        python -c 'import json, sys; print(",".join(row["row"] for row in json.load(sys.stdin)["rows"]))')
fi
data=$(data_of "$table")
found=$(runs_of "$table")
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
    li2021-figure3) fairseq-diverse plot head-map "${named[@]}" --data "$data" --out "$out" ;;
    li2021-figure4) fairseq-diverse accuracy "${named[@]}" --data "$data" --out "$out" && echo "$out" ;;
    wang2021-figure5) fairseq-diverse plot curves "${logs[@]}" --out "$out" ;;
    zhang2021-figure5)
        if [[ " ${drawing[*]} " != *" --sentence "* ]]; then
            theirs='Relations between Obama and Netanyahu have been strained for years.'
            number=$(grep -nxF -m 1 "$theirs" "$data/text/test.en" 2>/dev/null | cut -d: -f 1) || number=1
            drawing+=(--sentence "$number")
        fi
        fairseq-diverse plot attention --path "${named[@]}" --data "$data" --layer 1 "${drawing[@]}" --out "$out"
        ;;
esac
