#!/usr/bin/env bash
# Prepare Multi30k (raw train.*, val.*, test_2016_flickr.*) for fairseq-train; with TREES set, parse its source too.
exec "$(dirname "${BASH_SOURCE[0]}")/from-archives.sh" "$(basename "$0")" multi30k "en-de|en-fr|en-cs" "$@"
