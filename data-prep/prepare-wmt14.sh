#!/usr/bin/env bash
# Prepare WMT14, English to German or French, as Li et al. (2021), Zhang et al. (2021) and Wang et al. (2021).
exec "$(dirname "${BASH_SOURCE[0]}")/from-archives.sh" "$(basename "$0")" wmt14 "en-de|en-fr" "$@"
