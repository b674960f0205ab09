#!/usr/bin/env bash
# Li and Luo (2022): plain, fixed-size, talking and interacting heads in any number (Tables 3-5).
# Data: data-prep/prepare-iwslt16.sh ARCHIVES DATA, or prepare-wmt17.sh ARCHIVES DATA en-de (or en-cs).
# fairseq-diverse size --arch li2022_interacting --data DATA gives the mean sentence length (the size of fixed heads)
# and the largest number of interacting heads.
set -euo pipefail

usage="usage: [HEAD_SIZE=20] [LENPEN=1.0] $0 DATA OUT plain|fixed|talking|interacting|interacting-sum HEADS [FLAG...]
HEADS: number of heads. FLAG: any flag of fairseq-train.
HEAD_SIZE: width of fixed heads, 20 for IWSLT16, 25 for WMT17 En-De, 26 for WMT17 En-Cs.
LENPEN: length penalty, 1.0 for IWSLT16, 0.6 for WMT17."
[[ $# -ge 4 ]] || { echo "$usage" >&2 && exit 2; }
data=$1 out=$2 system=$3 heads=$4
shift 4

case $system in
    plain) flags=() ;;
    fixed) flags=(--qk-head-dim "${HEAD_SIZE:-20}") ;; # the mean length in section 4.1
    talking) flags=(--talking both) ;;
    interacting) flags=(--interacting concat) ;;
    interacting-sum) flags=(--interacting sum) ;;
    *) echo "$usage" >&2 && exit 2 ;;
esac

if cmp -s "$data"/dict.*.txt </dev/null; then # one vocabulary, as on IWSLT16 and WMT17 En-De
    flags+=(--share-all-embeddings)
fi

# length penalty 1.0 on IWSLT16, LENPEN=0.6 on WMT17
LENPEN=${LENPEN:-1.0} exec "$(dirname "${BASH_SOURCE[0]}")/train-and-score.sh" "$data" "$out" \
    --encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 \
    --encoder-attention-heads "$heads" --decoder-attention-heads "$heads" \
    --adam-betas '(0.9, 0.997)' --lr 4.9e-4 --warmup-updates 8000 "${flags[@]}" "$@"
