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
gcc -O2 -Wall -shared -fPIC "$ROOT/benches/slow_clock.c" -o "$WORK/slow_clock.so" || exit 1
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
# Instructions of a tagged message: the lengths differ enough for what is done once to cancel out, and for its differences
# between two runs, up to 400,000 instructions, to be 20 a message. Threads of the library get their turn at once: one that holds a
# lock while the program polls would wait for seconds. The clock goes as slowly as the program: the periodic checks between
# messages are as rare as without valgrind.
instructions() { # LIB PROVIDER SIZE
  local n out=()
  for n in 1000 21000; do
    LD_PRELOAD=$WORK/slow_clock.so LD_LIBRARY_PATH=$1${STAND_INS:+:$STAND_INS} timeout 200 valgrind --fair-sched=yes --tool=callgrind --callgrind-out-file="$WORK/cg" "$WORK/fabbench" steps rdm "$2" "$3" "$n" >"$WORK/cg.log" 2>"$WORK/err" || return 1
    out+=("$(sed -n 's/.*Collected : //p' "$WORK/err")")
  done
  echo $(((out[1] - out[0]) / 20000))
}
# has LIB PROVIDER: whether it has tagged messages over this provider.
has() { LD_LIBRARY_PATH=$1 timeout 60 "$WORK/fabbench" getinfo rdm "$2" 64 1 >/dev/null 2>&1; }
# fabric LIB PROVIDER MODE SIZE COUNT: one figure, by the command in WITHIN if there is one.
WITHIN=()
fabric() {
  if [ "$3" = steps ]; then instructions "$1" "$2" "$4"
  else LD_LIBRARY_PATH=$1 timeout 120 "${WITHIN[@]}" "$WORK/fabbench" "$3" rdm "$2" "$4" "$5" 2>"$WORK/err"; fi
}
# ours_and_peer: sets ours and peer, directories with LIBFABRIC_DIR's and BENCH_PEER's file alone.
ours_and_peer() {
  : "${BENCH_PEER:=$DEBIAN}"
  # shellcheck disable=SC2153 # ctest/lib.sh has it
  only "$BENCH_PEER" || exit 1; peer=$ONLY; echo "peer: $LUT"
  only "$LIBFABRIC_DIR" || exit 1; ours=$ONLY; echo "ours: $LUT"
}
# contender NAME MODE SIZE COUNT: one figure of ours over shm, tcp, tcp through sockets alone or tcp;ofi_rxm, or of the peer.
contender() {
  case $1 in
    shm | tcp) fabric "$ours" "$1" "${@:2}";;
    sockets) FI_TCP_LOCAL=0 fabric "$ours" tcp "${@:2}";;
    rxm) fabric "$ours" "tcp;ofi_rxm" "${@:2}";;
    peer-rxm) fabric "$peer" "tcp;ofi_rxm" "${@:2}";;
    peer-*) fabric "$peer" "${1#peer-}" "${@:2}";;
  esac
}
# leave_out_missing: the contenders of the peer that it has no provider for, into LEFT_OUT.
LEFT_OUT=" "
leave_out_missing() {
  local p
  for p in tcp rxm shm; do
    case $p in rxm) has "$peer" "tcp;ofi_rxm";; *) has "$peer" $p;; esac || { echo "peer: no tagged messages over $p"; LEFT_OUT+="peer-$p "; }
  done
}
# compare: reads rows KIND|SIZE|COUNT|CONTENDERS|RATIOS|TITLE and prints medians and ratios; each ratio is OURS/OTHER AIM.
# The figures are those of `figure CONTENDER KIND SIZE COUNT`, BENCH_N of each in turns. Fails when one of ours does.
compare() {
  local kind size count contenders ratios title all those c i j rounds v name pair aim fail=0
  while IFS='|' read -r kind size count contenders ratios title; do
    wanted "$kind" || continue
    count=$((count * BENCH_COUNT_SCALE / 100)); [ $count -gt 5 ] || count=5
    rm -f "$WORK"/fig.*
    read -ra all <<<"$contenders"
    those=(); for c in "${all[@]}"; do case $LEFT_OUT in *" $c "*) ;; *) those+=("$c");; esac; done
    rounds=$BENCH_N; [ "$kind" != steps ] || rounds=1
    for ((i = 0; i < rounds; i++)); do for ((j = 0; j < ${#those[@]}; j++)); do
      # each round begins with another, so that no contender always runs after the same one
      c=${those[(i + j) % ${#those[@]}]}
      [ ! -e "$WORK/fig.$c.failed" ] || continue
      if ! figure "$c" "$kind" "$size" "$count" >>"$WORK/fig.$c" </dev/null; then
        echo "failed: $c $kind $size: $(grep -m 1 . "$WORK/err" || echo "no end in sight")" >&2
        touch "$WORK/fig.$c.failed"; case $c in ucx | peer*) ;; *) fail=1;; esac
      fi
    done; done
    printf '%-30s' "$title"
    for c in "${those[@]}"; do
      v=$(median "$WORK/fig.$c"); printf ' %s %s ' "$c" "$v"
      case $c in peer-*) name="original, ${c#peer-}";; ucx) name=UCX;; *) name="ours, $c";; esac
      keep "$title" "$name" "$v"
    done; echo
    while read -r pair aim; do
      [ -n "$pair" ] || continue
      case $LEFT_OUT in *" ${pair%/*} "* | *" ${pair#*/} "*) continue;; esac
      printf '    %-26s %s  (aim %s)\n' "$pair" "$(ratio "$WORK/fig.${pair%/*}" "$WORK/fig.${pair#*/}")" "$aim"
    done < <(tr ',' '\n' <<<"$ratios")
  done
  return $fail
}
