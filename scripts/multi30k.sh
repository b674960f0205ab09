#!/usr/bin/env bash
# Multi30k En-De on a CPU: prepare the data, train and score baseline and disagreement with three seeds, show the table.
set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: [SEEDS=1,2,3] [JOBS=2] [SIZE=small] $0 RAW_DIR OUT [ROW...]" >&2
    echo "RAW_DIR holds {train,val,test_2016_flickr}.{en,de}; OUT gets data and runs. Interrupted, it goes on." >&2
    exit 2
fi
raw=$1 out=$2
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$out

table=(multi30k-disagreement --size "${SIZE:-small}")
[[ $# -eq 0 ]] || table+=(--rows "$(IFS=, && echo "$*")")

"$root/data-prep/prepare-multi30k.sh" "$raw" "$out/data/multi30k_en_de" en-de

failed=0
fairseq-diverse run "${table[@]}" --seeds "${SEEDS:-1,2,3}" --jobs "${JOBS:-2}" || failed=$?

echo
fairseq-diverse report "${table[@]}" --format markdown
exit "$failed"
