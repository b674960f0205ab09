#!/usr/bin/env bash
# All steps on the embedded corpus: data, training, translation, a table, attention maps. A second call resumes.
set -euo pipefail

if [[ $# -gt 0 ]]; then
    echo "usage: [SYSTEMS=baseline,disagreement|all] [SIZE=tiny] [SENTENCES=12000] [DEMO=demo] $0" >&2
    echo "SYSTEMS: rows of configs/tables/toy.yaml; DEMO: the output folder." >&2
    exit 2
fi
systems=${SYSTEMS:-baseline,disagreement} size=${SIZE:-tiny}
out=${DEMO:-demo}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$out OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

[[ $systems != all ]] ||
    systems=$(fairseq-diverse run toy --size "$size" --dry-run | sed -n 's/^# \(.*\) seed .*/\1/p' | paste -sd,)

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

echo "== fairseq-train and fairseq-generate, two runs side by side; logs in $out/toy-*/seed1"
fairseq-diverse run toy --size "$size" --rows "$systems" --jobs 2

echo "== results"
fairseq-diverse report toy --size "$size" --rows "$systems"
tail -n 1 "$out/word-by-word.txt"

echo "== attention maps"
for system in ${systems//,/ }; do
    run=$(fairseq-diverse run toy --size "$size" --rows "$system" --dry-run | sed -n '1s/.*, //p')
    for component in encoder cross; do
        map=$out/attention/$system-$component-2.png
        if [[ $map -nt $(echo "$run"/checkpoints/checkpoint_*.pt) ]]; then
            echo "$map: drawn before"
            continue
        fi
        fairseq-diverse plot attention --path "$run"/checkpoints/checkpoint_*.pt --data "$out/data/toy" \
            --sentence 3 --component $component --layer 2 --out "$map" | tail -n 1
    done
done
