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

data=multi30k_${pair/-/_}
table=("${TABLE:-multi30k}" --size "${SIZE:-small}" --data "$data")
[[ $# -gt 0 ]] || set -- baseline disagreement
[[ $1 == all ]] || table+=(--rows "$(IFS=, && echo "$*")")
plan=$(fairseq-diverse run "${table[@]}" --dry-run)
[[ $plan != *translation_with_syntax* ]] || export TREES=both

"$root/data-prep/prepare-multi30k.sh" "$raw" "$out/data/$data" "$pair"

failed=0
fairseq-diverse run "${table[@]}" --seeds "${SEEDS:-1,2,3}" --jobs "${JOBS:-2}" || failed=$?

echo
fairseq-diverse report "${table[@]}" --format markdown
exit "$failed"
