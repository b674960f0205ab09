#!/usr/bin/env bash
# AA-ResNet tiny with and without evolving attention, three seeds, two trainings side by side; a second call resumes.
set -euo pipefail
shopt -s nullglob
if [[ $# -lt 2 ]]; then
    echo "usage: [SEEDS='1 2 3'] $0 DATA OUT [flags of examples.images.train]" >&2
    echo "DATA: a folder with train/CLASS/*.jpg and test/CLASS/*.jpg of 32x32 pixels, or a .zip of it" >&2
    exit 2
fi
data=$(realpath "$1") out=$(realpath -m "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH=$PWD/.venv/bin:$PATH OMP_NUM_THREADS=1
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=268435456 GLIBC_TUNABLES=glibc.malloc.hugetlb=1
mkdir -p "$out"
if [[ -f $data ]]; then
    [[ -d $out/data ]] || { python -m zipfile -e "$data" "$out/data.part" && mv "$out/data.part" "$out/data"; }
    data=$out/data
fi

train() {
    local run=$out/$1-$2
    mkdir -p "$run"
    python -m examples.images.train --data "$data" --out "$run" --attention "$1" --seed "$2" --size tiny --epochs 12 \
        --batch 64 --workers 0 "${@:3}" >>"$run/log.txt" 2>&1 || { tail -n 1 "$run/log.txt" >&2 && return 255; }
}
export -f train
export data out
for seed in ${SEEDS:-1 2 3}; do
    printf '%s\n' "augmented $seed" "evolving $seed"
done | xargs -P 2 -L 1 bash -c 'train "${@: -2}" "${@:1:$#-2}"' train "${@:3}"
mkdir -p "$out/results"
for result in "$out"/*/result.json; do
    cp "$result" "$out/results/$(basename "$(dirname "$result")").json"
done
python -m examples.images.report "$out/results"
python -m examples.images.maps --data "$data" --checkpoint "$out"/{augmented,evolving}-1/checkpoint.pt --out "$out/maps.png"
