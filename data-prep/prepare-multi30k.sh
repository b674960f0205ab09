#!/usr/bin/env bash
# Prepare Multi30k (raw train.*, val.*, test_2016_flickr.*) for fairseq-train; with TREES set, parse its source too.
set -euo pipefail

pair=en-de
if [[ $# -ge 3 && $3 != --* ]]; then
    pair=$3
    set -- "$1" "$2" "${@:4}"
fi
if [[ $# -lt 2 || ! $pair =~ ^en-(de|fr|cs)$ ||
    ! ${TREES:-both} =~ ^(dependency|constituency|both)$ ]]; then
    echo "usage: [TREES=dependency|constituency|both] $(basename "$0") RAW_DIR OUT [en-de|en-fr|en-cs] [FLAG...]" >&2
    echo "FLAG: any flag of fairseq-diverse prepare." >&2
    echo "TREES: also parse the source; add-trees.sh says how to choose the parsers." >&2
    exit 2
fi
raw=$1 out=$2

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$here/../.venv/bin:$PATH
fairseq-diverse prepare "multi30k_${pair/-/_}" --raw "$raw" --out "$out" "${@:3}"
[[ -z ${TREES:-} ]] || "$here/add-trees.sh" "$out" "$TREES"
