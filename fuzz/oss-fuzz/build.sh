#!/bin/bash
# What OSS-Fuzz runs in its image: each fuzz target in OUT, with its corpus and its options.
#   SRC        folder of the checkout, 'ofi'
#   OUT        folder for the targets
#   FUZZ_BUILD folder of the build (default: target, of the checkout)
set -eu
cd "${SRC:?}/ofi"
: "${OUT:?}" "${FUZZ_BUILD:=target}"
# Both are for C++ projects: a library other than that of libFuzzer, and a second runtime of AddressSanitizer.
unset CFLAGS CXXFLAGS
export FUZZ_BUILD
CARGO_PROFILE_RELEASE_OPT_LEVEL=${CARGO_PROFILE_RELEASE_OPT_LEVEL:-2} fuzz/run 0
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$OUT"
# A target is a link to a program that chooses by its name.
while read -r target; do
  cp -L "$FUZZ_BUILD/$host/release/$target" "$OUT/$target"
  printf '[libfuzzer]\nmax_len = 4096\n' >"$OUT/$target.options"
  [ ! -d "fuzz/corpus/$target" ] || python3 -m zipfile -c "$OUT/${target}_seed_corpus.zip" "fuzz/corpus/$target"/*
done < <(fuzz/run --list)
