#!/usr/bin/env bash
# Prepare IWSLT16 German to English, as Li and Luo (2022).
exec "$(dirname "${BASH_SOURCE[0]}")/from-archives.sh" "$(basename "$0")" iwslt16 "de-en" "$@"
