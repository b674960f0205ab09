#!/usr/bin/env bash
# Build wheels of fairseq-fixed, one for each Python 3.11, 3.12 and 3.13 found, into OUT.
# usage: scripts/wheels.sh OUT
set -euo pipefail
out=${1:?usage: scripts/wheels.sh OUT}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
pinned() { grep -E "^($1)==" "$root/constraints.txt"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
built=() absent=()
for version in ${PYTHONS:-3.11 3.12 3.13}; do
    python=python$version
    # a shim of pyenv may be there without its Python
    if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$version" ]; then
        absent+=("$version")
        continue
    fi
    if ! compgen -G "$out/fairseq_fixed-*-cp${version/./}-*.whl" >/dev/null; then
        "$python" -m venv "$work/$version"
        "$work/$version/bin/python" -m pip install -q $(pinned 'torch|numpy|cython|setuptools|wheel')
        env -u CUDA_HOME "$work/$version/bin/python" -m pip wheel -q --no-build-isolation --no-deps --no-binary fairseq-fixed -w "$out" $(pinned fairseq-fixed)
        rm -rf "${work:?}/$version"
    fi
    built+=("$(basename "$out"/fairseq_fixed-*-cp"${version/./}"-*.whl)")
done
printf '%s\n' "${built[@]}"
[ ${#absent[@]} -eq 0 ] || echo "not found, no wheel: Python ${absent[*]}" >&2
[ ${#built[@]} -gt 0 ]
