# shellcheck shell=bash
# What the benches have in common: the library under test, built if need be, one program for all libraries, and
# figures.  Sourced with the packages that the bench needs.
. "$(dirname "${BASH_SOURCE[0]}")/../ctest/lib.sh"
need pkg-config gcc libc6-dev libfabric1 libfabric-dev valgrind "$@" || exit 1
if [ -z "${LIBFABRIC_DIR:-}" ]; then
  LIBFABRIC_DIR=$OUT/prefix/lib
  make -s -C "$ROOT" local >"$WORK/build.log" 2>&1 || { tail -n 20 "$WORK/build.log" >&2; exit 1; }
fi
DEBIAN=$(dirname "$(realpath "$(gcc -print-file-name=libfabric.so)")")
# against the oldest library: its symbol versions are in all of them
gcc -O2 -Wall "$ROOT/benches/fabbench.c" -o "$WORK/fabbench" -I/usr/include -L"$DEBIAN" -lfabric || exit 1
# What the figures are of.
heading() {
  local commit; commit=$(git -C "$ROOT" describe --always --dirty 2>/dev/null)
  set -- "commit ${commit:-unknown}, $(nproc) cores, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1 /proc/loadavg), medians of $BENCH_N alternating runs"
  echo "$1"
  [ -z "${BENCH_FIGURES:-}" ] || printf '%s\t%s\n' "$(basename "$0")" "$1" >>"$BENCH_FIGURES"
}
median() { sort -g "$1" 2>/dev/null | awk '{ v[NR] = $1 } END { m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; if (NR) printf m < 100 ? "%.3f" : "%.0f", m; else printf "-" }'; }
# How much more the first has: the median over the rounds, each compared with itself,
# because the machine's slow phases last longer than a round.
ratio() { paste "$1" "$2" 2>/dev/null | awk 'NF == 2 && $2 > 0 { print $1 / $2 }' >"$WORK/ratios"; median "$WORK/ratios"; }
# keep TITLE WHO FIGURE: a figure for the charts of 'make docs', in the file BENCH_FIGURES.
keep() { [ -z "${BENCH_FIGURES:-}" ] || printf '%s\t%s\t%s\t%s\n' "$(basename "$0")" "$@" >>"$BENCH_FIGURES"; }
# Whether rows of this kind are asked for (BENCH_ONLY).
wanted() { local k; [ -z "$BENCH_ONLY" ] && return 0; for k in $BENCH_ONLY; do [ "$k" = "$1" ] && return 0; done; return 1; }
# Instructions of a tagged message: the lengths differ enough for what is done once to cancel out.
instructions() { # LIB PROVIDER SIZE
  local n out=()
  for n in 1000 3000; do
    LD_LIBRARY_PATH=$1 timeout 200 valgrind --tool=callgrind --callgrind-out-file="$WORK/cg" "$WORK/fabbench" steps rdm "$2" "$3" "$n" >"$WORK/cg.log" 2>"$WORK/err" || return 1
    out+=("$(sed -n 's/.*Collected : //p' "$WORK/err")")
  done
  echo $(((out[1] - out[0]) / 2000))
}
