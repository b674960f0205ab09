#!/usr/bin/env bash
# BLEU on the validation split by length penalty, to choose one without looking at the test split.
set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: [TASK=translation] [BEAM=5] [USER_DIR=FOLDER] $0 CHECKPOINT DATA [LENPEN...]" >&2
    echo "DATA: folder made by fairseq-diverse prepare. LENPEN: length penalties (default: 0.6 0.8 1.0 1.2 1.4 1.6)." >&2
    echo "TASK: translation_with_syntax for a model that needs trees. USER_DIR: folder of a mechanism of your own." >&2
    exit 2
fi
[[ -f $1 ]] || { echo "$0: $1: no such file" >&2 && exit 2; }
[[ -f $2/preprocess.json ]] || { echo "$0: $2: not a folder made by fairseq-diverse prepare" >&2 && exit 2; }
checkpoint=$(realpath "$1") data=$(realpath "$2")
shift 2
[[ $# -gt 0 ]] || set -- 0.6 0.8 1.0 1.2 1.4 1.6
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH
target=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["target"])' "$data/preprocess.json")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

for lenpen in "$@"; do
    fairseq-generate "$data" --user-dir "${USER_DIR:-$root/fairseq_diverse}" --task "${TASK:-translation}" --path "$checkpoint" \
        --gen-subset valid --beam "${BEAM:-5}" --lenpen "$lenpen" --batch-size 64 --required-batch-size-multiple 1 >"$out/lenpen-$lenpen.log" 2>"$out/errors" || {
        { grep "^error: " "$out/errors" || cat "$out/errors"; } >&2
        exit 1
    }
done
cd "$out"
fairseq-diverse score --hyp lenpen-*.log --ref "$data/text/valid.$target" --data "$data"
