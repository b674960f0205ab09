#!/usr/bin/env bash
# Parse the source of prepared data and add its trees (--task translation_with_syntax). A second call resumes.
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 || $1 == -* || ! ${2:-both} =~ ^(dependency|constituency|both)$ ]]; then
    echo "usage: [WORKERS=N] $(basename "$0") DATA [dependency|constituency|both]" >&2
    echo "DATA: folder made by fairseq-diverse prepare. DEPENDENCY_MODEL and CONSTITUENCY_MODEL choose the parsers, by name or" >&2
    echo "folder (default: as fairseq-diverse parse). WORKERS: number of processes (default: one per core)." >&2
    exit 2
fi
data=$1 kinds=${2:-both}
[[ $kinds != both ]] || kinds="dependency constituency"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH
[[ -f $data/preprocess.json ]] || { echo "$0: $data: not a folder made by fairseq-diverse prepare" >&2 && exit 2; }
read -r language splits < <(python3 2>/dev/null -c 'import json, sys
record = json.load(open(sys.argv[1] + "/preprocess.json"))
print(record["source"], ",".join(record["splits"]))' "$data") ||
    { echo "$0: $data/preprocess.json: damaged; prepare the data again (with --overwrite)" >&2 && exit 2; }

trees=()
for kind in $kinds; do
    model=${kind^^}_MODEL file=conllu
    [[ $kind == dependency ]] || file=ptb
    fairseq-diverse parse --kind "$kind" --language "$language" \
        ${!model:+--model "${!model}"} ${WORKERS:+--workers "$WORKERS"} \
        --splits "$splits" --input "$data/text/tok.{split}.$language" --out "$data/trees/{split}.$language.$file"
    trees+=("--$kind" "$data/trees/{split}.$language.$file")
done
fairseq-diverse binarize-syntax --data "$data" --splits "$splits" "${trees[@]}"
