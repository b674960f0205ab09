#!/usr/bin/env bash
# All steps on the embedded corpus: data, training, translation, a table, attention maps, a page. A second call resumes.
set -euo pipefail

if [[ $# -gt 0 ]]; then
    echo "usage: [SYSTEMS=baseline,evolving,disagreement|all] [SIZE=tiny] [UPDATES=900] [SENTENCES=12000] [DEMO=demo] $0" >&2
    echo "SYSTEMS: rows of configs/tables/toy.yaml; DEMO: the output folder." >&2
    exit 2
fi
systems=${SYSTEMS:-baseline,evolving,disagreement} size=${SIZE:-tiny} updates=${UPDATES:-900}
out=${DEMO:-demo}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$out OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

table=(toy --size "$size" --set max-update="$updates")
[[ $systems != all ]] ||
    systems=$(fairseq-diverse run "${table[@]}" --dry-run --json |
        python -c 'import json, sys; print(*(run["row"] for run in json.load(sys.stdin)), sep=",")')

echo "== corpus and its word-by-word translation: $out/raw"
if [[ ! -f $out/word-by-word.txt ]]; then
    mkdir -p "$out"
    fairseq-diverse toy --out "$out/raw" --sentences "${SENTENCES:-12000}" --seed 1 --word-by-word >"$out/word-by-word.part"
    mv "$out/word-by-word.part" "$out/word-by-word.txt"
fi

echo "== tokens, subwords, fairseq-preprocess: $out/data/toy"
fairseq-diverse prepare toy --raw "$out/raw" --out "$out/data/toy"

if [[ ! -f $out/data/toy/test.en-de.en.syntax.json ]]; then
    fairseq-diverse binarize-syntax --data "$out/data/toy" --dependency "$out/raw/{split}.en.conllu" \
        --constituency "$out/raw/{split}.en.ptb"
fi

echo "== fairseq-train and fairseq-generate, three runs side by side, which keeps two cores busy; logs in $out/toy-*/seed1"
fairseq-diverse run "${table[@]}" --rows "$systems" --jobs 3

echo "== attention maps, two side by side"
maps=() # component, map, checkpoint
while IFS=$'\t' read -r system checkpoint; do
    for component in encoder cross; do
        map=$out/attention/$system-$component-2.png
        if [[ $map -nt $checkpoint ]]; then
            echo "$map: drawn before"
        else
            maps+=("$component" "$map" "$checkpoint")
        fi
    done
done < <(fairseq-diverse run "${table[@]}" --rows "$systems" --dry-run --json |
    python -c 'import json, sys; [print(run["row"], run["checkpoint"], sep="\t") for run in json.load(sys.stdin)]')
[[ ${#maps[@]} -eq 0 ]] || printf '%s\0' "${maps[@]}" | DATA=$out/data/toy xargs -0 -n 3 -P 2 bash -o pipefail -c \
    'fairseq-diverse plot attention --data "$DATA" --sentence 3 --layer 2 --component "$0" --out "$1" --path "$2" | tail -n 1' ||
    { echo "$0: a map could not be drawn, see above" >&2 && exit 1; }

echo "== results, and five test sentences"
columns=row,parameters,BLEU,chrF,TER,length # no speed: the trainings share the machine unequally
[[ $systems != *,* ]] || columns+=",Δ BLEU,Δ NLL"
fairseq-diverse report "${table[@]}" --rows "$systems" --columns "$columns,seeds" --translations 5
tail -n 1 "$out/word-by-word.txt"
fairseq-diverse report "${table[@]}" --rows "$systems" --format html --out "$out/report.html"

cat <<END

the same as a page:  $out/report.html
attention maps:      $out/attention/
Next, after "source $root/.venv/bin/activate":
  SYSTEMS=baseline,gated $0    # another mechanism
  FAIRSEQ_DIVERSE_RUNS=$(printf %q "$out") fairseq-diverse run$(printf ' %q' "${table[@]}") --rows $systems --seeds 1,2,3 --jobs 2    # one seed proves nothing
  fairseq-diverse prepare --source de --target en --train raw/train --valid raw/dev --test raw/test --out data    # your own
END
