#!/usr/bin/env bash
# What only a GPU can show: the tests that need one, then speed and memory of every mechanism with the model's prediction
# (results/gpu.md). Writes benchmarks/results/DEVICE.json and results/gpu-DEVICE.md.
set -euo pipefail

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    echo "usage: [TESTS=tests] $0 [--dry-run] [--out DIR] [FLAG...]    (FLAG: any flag of python -m benchmarks.gpu_check)"
    echo "--dry-run: run everything on the CPU, with tiny models. --out: folder for both result files."
    exit 0
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

python -m benchmarks.gpu_check "$@" --check

echo "== tests that need a GPU"
failed=0
python -m pytest -q -rs -m gpu -c "$root/pyproject.toml" --rootdir "$root" "${TESTS:-$root/tests}" || failed=$?

echo "== speed and memory, measured and modelled"
python -m benchmarks.gpu_check "$@"
exit "$failed"
