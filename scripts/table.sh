#!/usr/bin/env bash
# A table or figure of a paper: prepare its data, train, translate and score its rows, show the report. A second call resumes.
set -euo pipefail

if [[ $# -lt 2 || $1 == -* || $2 == -* || " $* " =~ " "(-h|--help)" " ]]; then
    echo "usage: $0 PAPER N [--archives DIR | --raw DIR] [FLAG...]" >&2
    echo "PAPER: li2021, zhang2021, li2022 or wang2021. N: a table (1, 2, ..., A2, A3), figure4, search or talking." >&2
    echo "FLAG: any flag of fairseq-diverse run, such as --rows a,b, --size small, --seeds 1,2,3, --best, --dry-run or --slurm (last)." >&2
    echo "Missing data sets are prepared in data/ in the folder of runs (\$FAIRSEQ_DIVERSE_RUNS, default runs/): from the archives in DIR" >&2
    echo "(default: archives/ there; missing archives are downloaded), or with --data NAME from the raw files in DIR. Archives that you" >&2
    echo "must download yourself are listed before anything else. A NAME without languages means English to German." >&2
    echo "DEPENDENCY_MODEL and CONSTITUENCY_MODEL choose the parsers for rows with syntax, PCFG_MODEL the grammar of rows pcfg." >&2
    exit 2
fi
table=$1-table$2
[[ $2 =~ ^A?[0-9] ]] || table=$1-$2
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=${FAIRSEQ_DIVERSE_RUNS:-runs}

flags=() before=
for word in "$@"; do
    [[ $before == --data || $word == --data=* ]] && [[ -f $root/configs/data/${word#--data=}_en_de.yaml ]] && word+=_en_de
    flags+=("$word") before=$word
done
exec fairseq-diverse run "$table" --prepare --report "$FAIRSEQ_DIVERSE_RUNS/reports/$table.html" "${flags[@]}"
