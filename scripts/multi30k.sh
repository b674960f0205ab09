#!/usr/bin/env bash
# Multi30k on a CPU: prepare the data, train and score the rows of a table with three seeds, show the table.
set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: [TABLE=multi30k] [PAIR=en-de] [SEEDS=1,2,3] [JOBS=2] [SIZE=small] $0 RAW_DIR OUT [ROW...]" >&2
    echo "RAW_DIR has {train,val,test_2016_flickr}.{en,de}. Data and runs go to OUT. A second call resumes." >&2
    echo "ROW: rows of the table, or all (default: baseline disagreement)." >&2
    echo "For rows with syntax the source is parsed; DEPENDENCY_MODEL and CONSTITUENCY_MODEL choose the parsers." >&2
    exit 2
fi
raw=$1 out=$2 pair=${PAIR:-en-de}
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$out

table=${TABLE:-multi30k} rows=()
[[ $# -gt 0 ]] || set -- baseline disagreement
[[ $1 == all ]] || rows=(--rows "$(IFS=, && echo "$*")")
exec fairseq-diverse run "$table" --size "${SIZE:-small}" --data "multi30k_${pair/-/_}" "${rows[@]}" --seeds "${SEEDS:-1,2,3}" \
    --jobs "${JOBS:-2}" --prepare --raw "$raw" --report "$out/reports/$table.html"
