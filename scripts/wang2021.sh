#!/usr/bin/env bash
# Wang et al. (2021): Transformer-Lite and -Base with evolving attention in encoder, decoder and cross-attention (Table 5).
# Data: data-prep/prepare-iwslt14.sh ARCHIVES DATA, or prepare-wmt14.sh ARCHIVES DATA en-de (or en-fr).
set -euo pipefail

usage="usage: $0 DATA OUT lite|ea-lite|base|ea-base [FLAG...]    (FLAG: any flag of fairseq-train)"
[[ $# -ge 3 ]] || { echo "$usage" >&2 && exit 2; }
data=$1 out=$2 system=$3
shift 3

evolving=(--evolving-on encoder,decoder,cross --evolving-conv 0.1 --evolving-kernel 3)
case $system in
    lite) flags=(--arch diverse_transformer_lite --lr 1e-3) ;;
    ea-lite) flags=(--arch diverse_transformer_lite --lr 1e-3 "${evolving[@]}" --evolving-carry 0.1) ;;
    base) flags=(--lr 5e-4) ;;
    ea-base) flags=(--lr 5e-4 "${evolving[@]}" --evolving-carry 0.5) ;;
    *) echo "$usage" >&2 && exit 2 ;;
esac

# the paper tries --lr 1e-4, 5e-4, 1e-3 and --dropout 0.1, 0.2, 0.3
BEAM=${BEAM:-5} LENPEN=${LENPEN:-1.0} exec "$(dirname "${BASH_SOURCE[0]}")/train-and-score.sh" "$data" "$out" \
    --share-decoder-input-output-embed --adam-eps 1e-8 "${flags[@]}" "$@"
