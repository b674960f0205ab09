#!/usr/bin/env bash
# Prepare WMT17, English to German or Czech as Li and Luo (2022), Chinese to English as Li et al. (2021).
exec "$(dirname "${BASH_SOURCE[0]}")/from-archives.sh" "$(basename "$0")" wmt17 "en-de|en-cs|zh-en" "$@"
