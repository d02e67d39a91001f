#!/bin/bash
# abidiff.sh ORIGINAL NEW: no symbol version of ORIGINAL is gone or changed in NEW.
# Only symbols can be compared: distributions ship the original without debug
# information. What lies behind the symbols is checked against the tables here.
set -u
out=$(abidiff "$1" "$2" 2>&1); rc=$?
grep 'summary:' <<<"$out"
# 1, 2: abidiff failed; 4: something changed (additions count); 8: incompatibly
[ $((rc & 11)) = 0 ] || { echo "abidiff ended with $rc"; grep -E '^ *\[[DC]\]' <<<"$out"; exit 1; }
[ "$(grep -c 'summary: 0 Removed' <<<"$out")" -ge 1 ] && ! grep -E 'summary: [1-9][0-9]* Removed|, [1-9][0-9]* Changed' <<<"$out"
