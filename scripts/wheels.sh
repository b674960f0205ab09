#!/usr/bin/env bash
# Build wheels of fairseq-fixed, or of a checkout of fairseq's main branch, one for each Python 3.11 to 3.14 found.
# usage: [PYTHONS="3.11 3.12"] scripts/wheels.sh [--fairseq CHECKOUT] OUT
set -euo pipefail
usage() { sed -n 's/^# usage/usage/p' "$0" >&2 && exit 2; }
checkout=
if [ "${1-}" = --fairseq ]; then
    [ $# -ge 2 ] || usage
    checkout=$2
    shift 2
fi
[ $# -eq 1 ] && [ "${1#-}" = "$1" ] || usage
root=$(cd "$(dirname "$0")/.." && pwd)
configs=fairseq/dataclass/configs.py transformer=fairseq/models/transformer/transformer_config.py utils=fairseq/dataclass/utils.py
for file in ${checkout:+setup.py "$configs" "$transformer" "$utils"}; do
    [ -f "$checkout/$file" ] || { echo "error: --fairseq $checkout: not a checkout of fairseq: $file is missing" >&2 && exit 2; }
done
command -v "${CXX:-g++}" >/dev/null || { echo "error: no C++ compiler: install g++" >&2 && exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
pinned() { grep -E "^($1)==" "$root/constraints.txt"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
name=fairseq_fixed for_python="$root/scripts/python-3.14.sed"
if [ -n "$checkout" ]; then
    name=fairseq
    mkdir "$work/fairseq" && tar -C "$checkout" --exclude .git -cf - . | tar -C "$work/fairseq" -xf -
    # Python 3.11 and newer refuse a dataclass as the default of a field, also in the hydra that fairseq pins. The
    # settings of all programs keep a class, which fairseq's hydra_init reads, those of a Transformer make one each.
    sed -E -i.old 's/^( +\w+: (\w+) = )\2\(\)/\1field(default=\2)/' "$work/fairseq/$configs"
    factory='field(default_factory=\2)'
    sed -E -i.old "s/^( +\w+: (\w+) = )\2\(\)/\1$factory/; s/(field\(default=(\w+)\(\)\))/$factory/" "$work/fairseq/$transformer"
    sed -E -i.old 's/"(hydra-core|omegaconf)[<>=][^"]*"/"\1"/g' "$work/fairseq/setup.py"
    sed -i.old -f "$for_python" "$work/fairseq/$utils"
    for file in "$configs" "$transformer" "$utils" setup.py; do
        echo "$file: $(diff "$work/fairseq/$file.old" "$work/fairseq/$file" | grep -c '^>' || true) lines changed"
        rm "$work/fairseq/$file.old"
    done
fi
built=() absent=()
for version in ${PYTHONS:-3.11 3.12 3.13 3.14}; do
    python=python$version
    # a shim of pyenv may be there without its Python
    if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$version" ]; then
        absent+=("$version")
        continue
    fi
    if ! compgen -G "$out/$name-*-cp${version/./}-*.whl" >/dev/null; then
        "$python" -m venv "$work/$version"
        "$work/$version/bin/python" -m pip install -q $(pinned 'torch|numpy|cython|setuptools|wheel')
        if [ ! -d "$work/fairseq" ]; then
            "$work/$version/bin/python" -m pip download -q --no-build-isolation --no-deps --no-binary fairseq-fixed -d "$work" "$(pinned fairseq-fixed)"
            mkdir "$work/fairseq" && tar -C "$work/fairseq" --strip-components 1 -xf "$work"/fairseq*.tar.gz
            sed -i.old -f "$for_python" "$work/fairseq/$utils"
        fi
        env -u CUDA_HOME "$work/$version/bin/python" -m pip wheel -q --no-build-isolation --no-deps -w "$out" "$work/fairseq"
        rm -rf "${work:?}/$version"
    fi
    built+=("$(basename "$out/$name"-*-cp"${version/./}"-*.whl)")
done
printf '%s\n' "${built[@]}"
[ ${#absent[@]} -eq 0 ] || echo "not found, no wheel: Python ${absent[*]}" >&2
[ ${#built[@]} -gt 0 ]
