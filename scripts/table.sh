#!/usr/bin/env bash
# A table or figure of a paper: prepare its data, train, translate and score its rows, show the report. A second call resumes.
set -euo pipefail

if [[ $# -lt 2 || $1 == -* || $2 == -* || " $* " =~ " "(-h|--help)" " ]]; then
    echo "usage: $0 PAPER N [--archives DIR | --raw DIR] [FLAG...]" >&2
    echo "PAPER: li2021, zhang2021, li2022 or wang2021. N: a table (1, 2, ..., A2, A3), figure4, search or talking." >&2
    echo "FLAG: any flag of fairseq-diverse run, such as --rows a,b, --size small, --seeds 1,2,3, --dry-run or --slurm (last); --best" >&2
    echo "of fairseq-diverse report; --no-download, --strict-counts and, for GLUE, --gpt2-bpe DIR of fairseq-diverse prepare." >&2
    echo "Missing data sets are prepared in data/ in the folder of runs (\$FAIRSEQ_DIVERSE_RUNS, default runs/): from the archives in DIR" >&2
    echo "(default: archives/ there; missing archives are downloaded), or with --data NAME from the raw files in DIR. Archives that you" >&2
    echo "must download yourself are listed before anything else. A NAME without languages means English to German." >&2
    echo "DEPENDENCY_MODEL and CONSTITUENCY_MODEL choose the parsers for rows with syntax." >&2
    exit 2
fi
table=$1-table$2
[[ $2 =~ ^A?[0-9] ]] || table=$1-$2
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runs=${FAIRSEQ_DIVERSE_RUNS:-runs}
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$runs

checks=() from=(--archives "$runs/archives") shared=() running=() reporting=()
while [[ $# -gt 0 ]]; do
    [[ $1 != --*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
    [[ $1 != --dr* || --dry-run != "$1"* ]] || set -- --dry-run "${@:2}" # fairseq-diverse run takes short forms, too
    case $1 in
        --archives | --raw) from=("$1" "${2:?$1: a folder is missing}") && shift ;;
        --data)
            data=${2:?$1: a name is missing}
            [[ ! -f $root/configs/data/${data}_en_de.yaml ]] || data=${data}_en_de
            shared+=(--data "$data") && shift
            ;;
        --gpus-of-paper)
            shared+=("$1")
            [[ ! ${2:-} =~ ^[0-9]+$ ]] || { shared+=("$2") && shift; }
            ;;
        --rows | --size | --set) shared+=("$1" "${2:?$1: a value is missing}") && shift ;;
        --no-download | --accept-counts | --strict-counts) checks+=("$1") ;;
        --gpt2-bpe) checks+=("$1" "${2:?$1: a folder is missing}") && shift ;;
        --best) reporting+=("$1") ;;
        --slurm) running+=("$@") && break ;;
        *) running+=("$1") ;;
    esac
    shift
done

if [[ " ${shared[*]} " == *" --gpus-of-paper "* && ! " ${shared[*]} " =~ " --gpus-of-paper "[0-9] ]]; then # the report needs their number, too
    for option in "${running[@]}"; do
        [[ ! $option =~ ^gpus[_-]per[_-]node=(.*:)?([0-9]+)$ ]] ||
            shared=("${shared[@]/%--gpus-of-paper/--gpus-of-paper=${BASH_REMATCH[2]}}")
    done
fi

plan=$(fairseq-diverse run "$table" "${shared[@]}" --dry-run "${running[@]}")
refused=$(sed -n 's/^# \(.*\) seed [0-9]*: refused: \(.*\), [^,]*$/row \1: \2/p' <<<"$plan" | sort -u)
[[ -z $refused ]] || { echo "$refused" >&2 && exit 2; }
[[ " ${running[*]} " != *" --dry-run "* ]] || { echo "$plan" && exit; }
missing=$(sed -n 's/^# .*[:,] checkpoint \(.*\) missing, .*/\1: no such checkpoint; give one with --set pretrained=FILE/p' <<<"$plan" | sort -u)
[[ -z $missing ]] || { echo "$missing" >&2 && exit 2; }
wanted='s/^# .*: data \(.*\) not prepared, .*/\1/p'
[[ " ${checks[*]} " != *" --gpt2-bpe "* ]] || # data that are there must have these subwords, too
    wanted+=';s/.*fairseq_cli.train \S*\/\(glue-\S*\) .*/\1/p'
mapfile -t names < <(sed -n "$wanted" <<<"$plan" | sort -u)
[[ ${#names[@]} -eq 0 ]] || fairseq-diverse prepare "${names[@]}" "${from[@]}" "${checks[@]}" --workers "$(nproc)"
for folder in $(sed -n 's/.*fairseq_cli.train \(\S*\) .*--task translation_with_syntax.*/\1/p' <<<"$plan" | sort -u); do
    compgen -G "$folder/test.*.syntax.json" >/dev/null || "$root/data-prep/add-trees.sh" "$folder"
done

failed=0
fairseq-diverse run "$table" "${shared[@]}" "${running[@]}" || failed=$?

echo
fairseq-diverse report "$table" "${shared[@]}" "${reporting[@]}" --format markdown
fairseq-diverse report "$table" "${shared[@]}" "${reporting[@]}" --format html --out "$runs/reports/$table.html"
echo "with pictures: $runs/reports/$table.html"
exit "$failed"
