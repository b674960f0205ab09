#!/usr/bin/env bash
# Prepare News Commentary v11 of WMT16, English to German or Czech, as Zhang et al. (2021).
exec "$(dirname "${BASH_SOURCE[0]}")/from-archives.sh" "$(basename "$0")" nc11 "en-de|en-cs" "$@"
