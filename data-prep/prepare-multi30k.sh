#!/usr/bin/env bash
# Prepare Multi30k (raw train.*, val.*, test_2016_flickr.*) for fairseq-train.
set -euo pipefail

usage="usage: $(basename "$0") RAW_DIR OUT [en-de|en-fr|en-cs]"
if [[ $# -lt 2 || $# -gt 3 || ! ${3:-en-de} =~ ^en-(de|fr|cs)$ ]]; then
    echo "$usage" >&2
    exit 2
fi
raw=$1 out=$2 pair=${3:-en-de}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command=$root/.venv/bin/fairseq-diverse
[[ -x $command ]] || command=fairseq-diverse
exec "$command" prepare "multi30k_${pair/-/_}" --raw "$raw" --out "$out"
