#!/usr/bin/env bash
# A figure of a paper, drawn from the trained rows of a table; what is missing is prepared and trained first. Interrupted, it resumes.
set -euo pipefail

if [[ $# -lt 2 || $1 == -* || $2 == -* ]]; then
    echo "usage: $0 PAPER N [--out FILE] [--sentence N] [--heads 1,2] [FLAG...]" >&2
    echo "li2021 3: heads by t-SNE; li2021 4: logical inference; zhang2021 5: attention maps; wang2021 5: learning curves;" >&2
    echo "zhang2021 4: gates; li2022 3: sentence lengths; li2022 4, 5 and 6: minutes an epoch by number of heads. FLAG: any flag of scripts/table.sh, such as --raw DIR, --data NAME, --size small, --rows a,b." >&2
    echo "--out: picture to write (default: figures/PAPER-figureN.png in the folder of runs, \$FAIRSEQ_DIVERSE_RUNS or runs/)." >&2
    echo "--sentence and --heads are for zhang2021 5: a sentence of the test split (default: the paper's, else the first) and heads." >&2
    exit 2
fi
paper=$1 figure=$1-figure$2 rows= metric= dry=
case "$1 $2" in
    "li2021 3") number=1 rows=baseline,subspace,position,output ;;
    "li2021 4") number=figure4 rows=baseline,disagreement,aggregation,both ;;
    "zhang2021 5") number=1 rows=lpea-rhe,rel-pos,localness ;;
    "zhang2021 4") number=figure4 rows=transformer,gate-0.1,gate-0.2,gate-0.3,gate-0.4,gate-0.5,dynamic metric=bleu ;;
    "wang2021 5") number=5 rows=de-en-lite,de-en-ea-lite ;;
    "li2022 3") data=(iwslt16_de_en wmt17_en_de wmt17_en_cs) ;;
    "li2022 "[456]) number=$(($2 + 2)) metric=epoch_minutes ;;
    *) echo "$0: no Figure $2 of $1; there are li2021 3 and 4, zhang2021 4 and 5, wang2021 5, li2022 3 to 6; others: docs/analyses.md" >&2 && exit 2 ;;
esac
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runs=${FAIRSEQ_DIVERSE_RUNS:-runs}
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$runs
out=$runs/figures/$figure.png

given=() changed=() drawing=() from=(--archives "$runs/archives") checks=()
while [[ $# -gt 0 ]]; do
    [[ $1 != --*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
    case $1 in
        --out) out=${2:?$1: a file is missing} && shift ;;
        --sentence | --heads) drawing+=("$1" "${2:?$1: a number is missing}") && shift ;;
        --rows) rows=${2:?$1: a name is missing} && shift ;;
        --data)
            data=("${2:?$1: a name is missing}")
            [[ ! -f $root/configs/data/$2_en_de.yaml ]] || data=("$2_en_de")
            changed+=(--data "${data[0]}") && shift
            ;;
        --size | --set) changed+=("$1" "${2:?$1: a value is missing}") && shift ;;
        --archives | --raw) from=("$1" "${2:?$1: a folder is missing}") given+=("$1" "$2") && shift ;;
        --dry-run) dry=1 given+=("$1") ;;
        --no-download | --accept-counts | --strict-counts) checks+=("$1") given+=("$1") ;;
        *) given+=("$1") ;;
    esac
    shift
done

if [[ $figure == li2022-figure3 ]]; then # nothing to train
    folders=() missing=()
    for name in "${data[@]}"; do
        [[ -d $runs/data/$name || ! -d $name ]] || { folders+=("$name") && continue; }
        folders+=("$runs/data/$name")
        [[ -d $runs/data/$name ]] || missing+=("$name")
    done
    [[ -z $dry ]] || { echo "to prepare: ${missing[*]:-nothing}" && exit 0; }
    [[ ${#missing[@]} -eq 0 ]] || fairseq-diverse prepare "${missing[@]}" "${from[@]}" "${checks[@]}" --workers "$(nproc)"
    exec fairseq-diverse plot lengths --data "${folders[@]}" --out "$out"
fi

given+=("${changed[@]}" ${rows:+--rows "$rows"})
"$root/scripts/table.sh" "$paper" "$number" "${given[@]}" ||
    { echo "$0: nothing drawn: a row failed, see above" >&2 && exit 1; }
[[ -z $dry ]] || exit 0
table=$paper-table$number
[[ -z $metric ]] || exec fairseq-diverse plot rows "${table/tablefig/fig}" "${changed[@]}" ${rows:+--rows "$rows"} --metrics "$metric" --out "$out"
# of each row, of a grid the point with the lowest validation loss: name, checkpoint of the first seed, folders of all
chosen=$("$root/scripts/table.sh" "$paper" "$number" --dry-run --json "${given[@]}" | python -c '
import json, statistics, sys
families = {}
for run in json.load(sys.stdin):
    families.setdefault(run["family"], {}).setdefault(run["row"], []).append(run)
def loss(point): return statistics.mean([run["loss"] for run in point if run["loss"] is not None] or [float("inf")])
chosen = {name: min(points.values(), key=loss) for name, points in families.items()}
if unfinished := [point[0]["row"] for point in chosen.values() if not all(run["done"] for run in point)]:
    sys.exit("not finished: " + ",".join(unfinished) + "; call it again when they are")
for name, point in chosen.items():
    print(name, point[0]["data"], point[0]["checkpoint"], *(run["folder"] for run in point), sep="\t")')
named=() logs=()
while IFS=$'\t' read -r name corpus checkpoint folders; do
    trained_on=$corpus # corpus is empty after the last read
    named+=("$name=$checkpoint")
    IFS=$'\t' read -ra folders <<<"$folders"
    logs+=("${folders[@]/#/$name=}")
done <<<"$chosen"

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
