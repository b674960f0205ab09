#!/usr/bin/env bash
# From archives, or the raw files of Multi30k, to data for fairseq-train; called by the prepare-*.sh. With TREES set, parse the source too.
set -euo pipefail

[[ $# -ge 3 ]] || { echo "$0: called by prepare-iwslt14.sh, ..., prepare-wmt17.sh" >&2 && exit 2; }
script=$1 data=$2 pairs=$3 from=archives
[[ $data != multi30k ]] || from=raw
shift 3
pair=${pairs%%|*}
if [[ $# -ge 3 && $3 != --* ]]; then
    pair=$3
    set -- "$1" "$2" "${@:4}"
fi
if [[ $# -lt 2 || $1 == -* || ! $pair =~ ^($pairs)$ || ! ${TREES:-both} =~ ^(dependency|constituency|both)$ ]]; then
    echo "usage: [TREES=dependency|constituency|both] $script ${from^^} OUT [$pairs] [FLAG...]" >&2
    [[ $from != archives ]] || echo "Missing archives are downloaded into ARCHIVES, but for --no-download; those that you must download yourself are listed." >&2
    echo "FLAG: any flag of fairseq-diverse prepare, such as --strict-counts, --workers 8. TREES: also parse the source (add-trees.sh)." >&2
    exit 2
fi
folder=$1 out=$2

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$here/../.venv/bin:$PATH
fairseq-diverse prepare "${data}_${pair/-/_}" "--$from" "$folder" --out "$out" "${@:3}"
[[ -z ${TREES:-} ]] || "$here/add-trees.sh" "$out" "$TREES"
