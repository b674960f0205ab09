#!/usr/bin/env bash
# What trained translation encoders know: ten probing tasks each, in one table (Li et al., 2021, section 4.2). A second call resumes.
set -euo pipefail

if [[ $# -lt 4 ]]; then
    echo "usage: [PROBES=a,b] [SIZE=probing_small] [SEEDS=1] [JOBS=2] $0 PROBING DATA OUT NAME=CHECKPOINT..." >&2
    echo "PROBING: folder with the ten files of SentEval, or of fairseq-diverse toy --probing. DATA: prepared data set of the" >&2
    echo "checkpoints. OUT: folder for the runs and the table. Encoders are compared with the first. PROBES: tasks (default: all ten)." >&2
    exit 2
fi
probing=$(realpath "$1") data=$(realpath "$2") out=$3
shift 3
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$out

quoted() { echo "'${1//\'/\'\'}'"; } # a text of YAML

for encoder in "$@"; do
    [[ $encoder == ?*=?* && -f ${encoder#*=} ]] || { echo "$0: $encoder: must be NAME=CHECKPOINT with an existing file" >&2 && exit 2; }
done
all=$(python -c 'from fairseq_diverse.data.probing import TASKS; print(*TASKS, sep=",")')
mkdir -p "$out"
{
    echo "title: What trained encoders know, accuracy by task (Li et al., 2021, section 4.2)"
    echo "data: $(quoted "$probing")"
    echo "size: $(quoted "${SIZE:-probing_small}")"
    echo "flags: {checkpoint-data: $(quoted "$data")}"
    echo "grid: {probe: [${PROBES:-$all}]}"
    echo "rows:"
    for encoder in "$@"; do
        echo "  $(quoted "${encoder%%=*}"): {from-checkpoint: $(quoted "$(realpath "${encoder#*=}")")}"
    done
} >"$out/probing.yaml.part"
mv "$out/probing.yaml.part" "$out/probing.yaml"

fairseq-diverse run "$out/probing.yaml" --seeds "${SEEDS:-1}" --jobs "${JOBS:-2}" --report "$out/probing.html"
