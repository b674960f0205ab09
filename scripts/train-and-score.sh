#!/usr/bin/env bash
# One system with plain fairseq commands: Transformer-Base by default, trained, averaged, translated and scored.
set -euo pipefail

if [[ $# -lt 2 || $1 == -* || $2 == -* ]]; then
    echo "usage: [TASK=translation] [LAST=0] [BEAM=4] [LENPEN=0.6] [USER_DIR=FOLDER] $0 DATA OUT [FLAG...]" >&2
    echo "DATA: folder made by fairseq-diverse prepare. FLAG: any flag of fairseq-train; it overrides the defaults of this script." >&2
    echo "LAST: how many last checkpoints are averaged (0: none). USER_DIR: folder of a mechanism of your own." >&2
    exit 2
fi
data=$1 out=$2 task=${TASK:-translation}
shift 2
[[ -f $data/preprocess.json ]] || { echo "$0: $data: not a folder made by fairseq-diverse prepare" >&2 && exit 2; }
[[ $data$out != *:* ]] || { echo "$0: fairseq cannot read a path with a colon; give other folders" >&2 && exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH
user=(--user-dir "${USER_DIR:-$root/fairseq_diverse}")

# 8 GPUs with 4,096 tokens each; with fewer: --update-freq 8 (one), 4 (two), 2 (four)
fairseq-train "$data" "${user[@]}" --save-dir "$out" --arch diverse_transformer --task "$task" \
    --dropout 0.1 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-9 --lr 7e-4 --lr-scheduler inverse_sqrt \
    --warmup-updates 4000 --max-tokens 4096 --max-update 100000 \
    --save-interval-updates 1000 --keep-interval-updates 10 --no-epoch-checkpoints "$@"

checkpoint=$out/checkpoint_last.pt
if [[ ${LAST:-0} -gt 0 ]]; then
    checkpoint=$out/checkpoint_average.pt
    fairseq-diverse average --checkpoints "$out" --updates --last "$LAST" --out "$checkpoint"
fi

fairseq-generate "$data" "${user[@]}" --task "$task" --path "$checkpoint" --gen-subset test \
    --beam "${BEAM:-4}" --lenpen "${LENPEN:-0.6}" --batch-size 64 --required-batch-size-multiple 1 >"$out/test.log"
target=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["target"])' "$data/preprocess.json")
fairseq-diverse score --hyp "$out/test.log" --ref "$data/text/test.$target" --data "$data"
