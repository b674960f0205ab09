#!/usr/bin/env bash
# Prepare IWSLT14 German to English, as Wang et al. (2021).
exec "$(dirname "${BASH_SOURCE[0]}")/from-archives.sh" "$(basename "$0")" iwslt14 "de-en" "$@"
