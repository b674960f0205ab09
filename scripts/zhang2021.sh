#!/usr/bin/env bash
# Zhang et al. (2021): dependency- or phrase-enhanced attention with redundant head enlivening on encoder layer 1 (Table 1).
# Data with trees: TREES=both data-prep/prepare-wmt16.sh ARCHIVES DATA en-de (or en-cs).
# On WMT14, Table 1 has another form of localness: --localness-form heads.
set -euo pipefail

usage="usage: $0 DATA OUT baseline|rel-pos|localness|dea|dea-rhe|lpea|lpea-rhe [FLAG...]    (FLAG: any flag of fairseq-train)"
[[ $# -ge 3 ]] || { echo "$usage" >&2 && exit 2; }
data=$1 out=$2 system=$3
shift 3

syntax=(--syntax-on encoder:1)
enlivening=(--enliven enliven --enliven-on encoder:1 --enliven-gate dynamic)
case $system in
    baseline) flags=() ;;
    rel-pos) flags=(--relative-on encoder --relative-limit 16) ;;
    localness) flags=(--localness-on encoder:1-3 --localness-form shared) ;;
    dea) flags=("${syntax[@]}" --syntax dependency) ;;
    dea-rhe) flags=("${syntax[@]}" --syntax dependency "${enlivening[@]}") ;;
    lpea) flags=("${syntax[@]}" --syntax phrase --phrase-limit 6) ;;
    lpea-rhe) flags=("${syntax[@]}" --syntax phrase --phrase-limit 6 "${enlivening[@]}") ;;
    *) echo "$usage" >&2 && exit 2 ;;
esac

[[ " ${flags[*]} " != *" --syntax "* ]] || export TASK=translation_with_syntax
# four GPUs; the last 10 checkpoints are averaged
LAST=${LAST:-10} exec "$(dirname "${BASH_SOURCE[0]}")/train-and-score.sh" "$data" "$out" \
    --attention-dropout 0.1 --activation-dropout 0.1 "${flags[@]}" "$@"
