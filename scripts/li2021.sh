#!/usr/bin/env bash
# Li et al. (2021): Transformer-Base with disagreement regularization, routing-by-agreement, or both (Table 5).
# Data: data-prep/prepare-wmt14.sh ARCHIVES DATA en-de, or prepare-wmt17.sh ARCHIVES DATA zh-en.
set -euo pipefail

usage="usage: $0 DATA OUT baseline|disagreement|aggregation|both [FLAG...]    (FLAG: any flag of fairseq-train)"
[[ $# -ge 3 ]] || { echo "$usage" >&2 && exit 2; }
data=$1 out=$2 system=$3
shift 3

disagreement=(--criterion label_smoothed_cross_entropy_with_disagreement --disagreement output
    --disagreement-on encoder,cross,decoder --disagreement-weight 1.0)
aggregation=(--routing em --routing-on encoder:1-2 --routing-iterations 3)
case $system in
    baseline) flags=() ;;
    disagreement) flags=("${disagreement[@]}") ;;
    aggregation) flags=("${aggregation[@]}") ;;
    both) flags=("${disagreement[@]}" "${aggregation[@]}") ;;
    *) echo "$usage" >&2 && exit 2 ;;
esac

exec "$(dirname "${BASH_SOURCE[0]}")/train-and-score.sh" "$data" "$out" \
    --attention-dropout 0.1 --activation-dropout 0.1 "${flags[@]}" "$@"
