#!/usr/bin/env bash
# Prepare tables nlu-small and nlu-small-t5: English text for pre-training; CoLA, SST-2 and RTE with its dictionary.
set -euo pipefail

if [[ $# -lt 1 || $1 == -* ]]; then
    echo "usage: $(basename "$0") DIR [FLAG...]" >&2
    echo "DIR has tatoeba_de-en/{train,valid}.en, news_small_en-de/{train,valid}.en and glue/{CoLA,SST-2,RTE}. The text goes to" >&2
    echo "nlu_small-text/ and the data to data/ in the folder of runs (\$FAIRSEQ_DIVERSE_RUNS, default runs/). FLAG: any flag of" >&2
    echo "fairseq-diverse prepare, such as --workers 2." >&2
    exit 2
fi
from=$1
shift
for file in {tatoeba_de-en,news_small_en-de}/{train,valid}.en glue/{CoLA,SST-2,RTE}/{train,dev}.tsv; do
    [[ -f $from/$file ]] || { echo "$0: $from/$file: no such file" >&2 && exit 2; }
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runs=${FAIRSEQ_DIVERSE_RUNS:-runs}
export PATH=$root/.venv/bin:$PATH FAIRSEQ_DIVERSE_RUNS=$runs
text=$runs/nlu_small-text
mkdir -p "$text"

# sentences once, in an order that is always the same: neighbours of Tatoeba and of SST-2 are much alike
shuffled() { LC_ALL=C sort -u | shuf --random-source=<(yes); }
# the sentences of the dev sets, which are no text for pre-training
{
    cut -f 4 "$from/glue/CoLA/dev.tsv"
    tail -n +2 "$from/glue/SST-2/dev.tsv" | cut -f 1
    tail -n +2 "$from/glue/RTE/dev.tsv" | cut -f 2,3 | tr '\t' '\n'
} | sed 's/^ *//; s/ *$//' >"$text/dev.part"
{
    cat "$from/tatoeba_de-en/train.en" "$from/news_small_en-de/train.en"
    tail -n +2 "$from/glue/SST-2/train.tsv" | cut -f 1
} | sed 's/^ *//; s/ *$//' | grep . | { grep -vxFf "$text/dev.part" || true; } | shuffled >"$text/train.part"
head -qn 1000 "$from/tatoeba_de-en/valid.en" "$from/news_small_en-de/valid.en" | shuffled >"$text/valid.part"
for split in train valid; do
    mv "$text/$split.part" "$text/$split.en"
done
rm "$text/dev.part"

fairseq-diverse prepare nlu_small --raw "$text" "$@"
fairseq-diverse prepare glue-{CoLA,SST-2,RTE}@nlu_small --raw "$from/glue" "$@"
fairseq-diverse prepare nlu_small_t5 --raw "$text" "$@"
fairseq-diverse prepare glue-{CoLA,SST-2,RTE}.text@nlu_small_t5 --raw "$from/glue" "$@"
