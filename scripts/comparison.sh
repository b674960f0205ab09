#!/usr/bin/env bash
# The comparison of results/comparison/plan.md at the size of the papers, on GPUs. A second call resumes.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ ${1:-} != iwslt14 && ${1:-} != wmt14 || " $* " =~ " "(-h|--help)" " ]]; then
    echo "usage: $0 iwslt14|wmt14 [FLAG...]" >&2
    echo "iwslt14 trains eleven systems, and thirteen with a modern baseline, with five seeds each. wmt14 trains both baselines and" >&2
    echo "the three mechanisms of each with the lowest NLL on IWSLT14, with three seeds each; finish iwslt14 first (of both" >&2
    echo "baselines, or of one), and give the same --set to both." >&2
    echo "FLAG: any flag of scripts/table.sh, such as --raw DIR, --jobs 8, --rows a,b, --gpus-of-paper, --set fp16=true, --slurm ..." >&2
    echo "--dry-run shows what is to do and trains nothing. Modelled hours: results/scaling.md." >&2
    exit 2
fi
corpus=$1 seeds=1,2,3,4,5 rows=() settings=() before=
shift
for word in "$@"; do # what is set for all trainings was set on IWSLT14, too
    [[ $before != --set ]] || settings+=(--set "$word")
    [[ $word != --set=* ]] || settings+=("$word")
    before=$word
done
export PATH=$root/.venv/bin:$PATH
if [[ $corpus == wmt14 ]]; then
    seeds=1,2,3
    if [[ " $* " != *" --rows"[\ =]* ]]; then
        best=$(fairseq-diverse report comparison-iwslt14 "${settings[@]}" --format json | python -c '
import json, sys
rows = json.load(sys.stdin)["rows"]
if few := ["{row} ({seeds} of 5 seeds)".format(**row) for row in rows if row["seeds"] < 5]:
    print("not finished on IWSLT14:", ", ".join(few), file=sys.stderr)
best = []
for baseline in ("baseline", "modern"):
    found = [row for row in rows if row.get("baseline") == baseline and "nll_delta" in row and row["row"] != "wider"]
    if len(found) > 2:
        best += [baseline, *(row["row"] for row in sorted(found, key=lambda row: row["nll_delta"])[:3])]
print(",".join(best))')
        [[ -n $best ]] || { echo "$0: fewer than three systems are finished on IWSLT14; train them, or name --rows" >&2 && exit 1; }
        rows=(--rows "$best")
    fi
fi
[[ " $* " != *" --seeds"[\ =]* ]] || seeds=
exec "$root/scripts/table.sh" comparison "$corpus" "${rows[@]}" ${seeds:+--seeds $seeds} "$@"
