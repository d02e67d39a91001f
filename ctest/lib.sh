# Shared by the scripts here: packages, the one-file library directory, proofs.
# shellcheck shell=bash
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # for those who source this
OUT=$ROOT/out
WORK=$(mktemp -d)
# What this shell has started and what has not ended yet: the number of what has may be another's by now. With job
# control (set -m) each is a group of processes.
cleanup() {
  local p group=; case $- in *m*) group=-;; esac
  for p in $(jobs -pr); do kill -- "$group$p" 2>/dev/null; done
  rm -rf "$WORK"
}
# stop PID: ends a process that this shell has started, if it still runs
stop() { ! jobs -pr | grep -qx -- "$1" || kill "$1" 2>/dev/null; }
# stop_late PID: the same, after the time in which a process that has failed says why and ends
stop_late() { local _; for _ in $(seq 100); do jobs -pr | grep -qx -- "$1" || return 0; sleep 0.05; done; stop "$1"; }
trap cleanup EXIT
trap 'exit 130' INT TERM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# tests_of NAME: what a script tests. From here on `check STATUS WORDS...` tells of one test, `skip
# WORDS...` of one that cannot run here; `total` prints the count and ends the script.
tests_of() { SUITE=$1 OK=0 BAD=0 SKIPPED=0; }
check() {
  local r=$1; shift
  if [ "$r" = 0 ]; then OK=$((OK + 1)); echo "ok   $SUITE: $*"; return; fi
  BAD=$((BAD + 1)); echo "FAIL $SUITE: $*"
  [ ! -s "${LOG:-/dev/null}" ] || tail -n 20 "$LOG"	# what the script names as the test's output
}
skip() { SKIPPED=$((SKIPPED + 1)); echo "skip $SUITE: $*"; }
total() { echo "$OK passed, $BAD failed, $SKIPPED skipped"; [ $BAD = 0 ] && [ $((OK + SKIPPED)) -gt 0 ]; exit; }

say() { printf '\n== %s\n' "$*"; }

# need PACKAGE...: installs what is missing, once; fails with a clear message when it cannot.
need() {
  local p missing=() sudo=()
  for p; do dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p"); done
  [ ${#missing[@]} = 0 ] && return 0
  command -v apt-get >/dev/null || { echo "please install: ${missing[*]} (no apt-get here)" >&2; return 1; }
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "please run as root: apt-get install ${missing[*]}" >&2; return 1; }
    sudo=(sudo -n)
  fi
  echo "installing once: ${missing[*]}"
  # one at a time: others wait for it
  local lock; exec {lock}>"${TMPDIR:-/tmp}/ofi-test-packages.$(id -u)"; flock "$lock"
  # shellcheck disable=SC2024
  { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null >"$WORK/apt.log" 2>&1 ||
    { "${sudo[@]}" apt-get update -q </dev/null >>"$WORK/apt.log" 2>&1 &&
      "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null >>"$WORK/apt.log" 2>&1; }; } && { exec {lock}>&-; return 0; }
  exec {lock}>&-
  tail -n 5 "$WORK/apt.log" >&2
  echo "please run as root: apt-get install ${missing[*]}" >&2
  return 1
}

# need_for SUITE PACKAGE...: the same for a whole suite, which ends here without them: it is left
# out for a user who may not install any.
need_for() {
  local suite=$1; shift
  need "$@" && return
  if [ "$(id -u)" = 0 ]; then echo "FAIL $suite: packages to test with"; echo "0 passed, 1 failed, 0 skipped"; exit 1
  else echo "skip $suite: root has to install: $*"; echo "0 passed, 0 failed, 1 skipped"; exit 0; fi
}

# only DIR: sets ONLY to a directory that holds nothing but a link to DIR's libfabric.so.1,
# and LUT to that file: programs get this one file in place of theirs, and no other.
only() {
  LUT=$(realpath -e "$1/libfabric.so.1") || return 1
  ONLY=$WORK/only.$RANDOM; mkdir "$ONLY"; ln -s "$LUT" "$ONLY/libfabric.so.1"
}

# The libfabric files that a live process has mapped.
mapped() { awk '/libfabric\.so/ { print $6 }' "/proc/$1/maps" 2>/dev/null | sort -u; }

# with_net COMMAND...: where only loopback exists, a private namespace with a pair of
# virtual interfaces (programs that ask for a remote peer refuse loopback).
with_net() {
  if ip -o addr show up scope global 2>/dev/null | grep -q inet || ! command -v ip >/dev/null; then "$@"; else private_net "$@"; fi
}
# private_net COMMAND...: in a namespace of its own with a pair of virtual interfaces, eth0 10.99.0.1/24 of MTU 1500.
private_net() {
  local setup='ip link set lo up; ip link add eth0 type veth peer name eth0p && ip addr add 10.99.0.1/24 dev eth0 && ip link set eth0 up && ip link set eth0p up; exec "$@"'
  if [ "$(id -u)" = 0 ]; then unshare -n bash -c "$setup" private_net "$@"; else unshare -rn bash -c "$setup" private_net "$@"; fi
}

# fi_pp BIN PROVIDER TYPE OUTFILE [OPTION...]: server and client of fi_pingpong on loopback, over the libraries in
# PP_SERVER and PP_CLIENT, or over the one in ONLY. Sets PP_LIBS to the libfabric files the live server had mapped.
: "${PP_PORT:=$((20000 + RANDOM % 12000))}"	# below those the system gives to others
# free_port: the next port such that no socket uses it or its successor, not even a closed connection
free_port() {
  PP_PORT=$((PP_PORT + 2))
  while ss -Htan "sport = :$PP_PORT or sport = :$((PP_PORT + 1))" 2>/dev/null | grep -q .; do PP_PORT=$((PP_PORT + 2)); done
}
# Another program may take the port before the server does: the next port is tried then.
fi_pp() {
  local _
  for _ in 1 2 3; do
    fi_pp_once "$@" && return 0
    # shm of the original takes the region that a killed process of the same number left for one in use
    grep -qE 'Address already in use|Device or resource busy' "$WORK/pp.server" "$4" || break
  done
  { echo "fi_pingpong $PP_STATUS"; tail -n 3 "$WORK/pp.server" "$4"; } >&2
  return 1
}
fi_pp_once() {
  local bin=$1 prov=$2 type=$3 out=$4 pid i rc rc2; shift 4
  free_port; PP_LIBS=	# the data has the next port, which stays taken for a while
  LD_LIBRARY_PATH=${PP_SERVER:-$ONLY} timeout 100 "$bin" -p "$prov" -e "$type" "$@" -B "$PP_PORT" </dev/null >"$WORK/pp.server" 2>&1 &
  pid=$!
  for i in $(seq 1000); do
    ss -Hltn "sport = :$PP_PORT" 2>/dev/null | grep -q . && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.05
  done
  # the library is mapped at start: the server is a child of timeout
  # shellcheck disable=SC2034
  PP_LIBS=$(for i in $(pgrep -P $pid 2>/dev/null); do mapped "$i"; done | sort -u)
  LD_LIBRARY_PATH=${PP_CLIENT:-$ONLY} timeout 100 "$bin" -p "$prov" -e "$type" "$@" -P "$PP_PORT" 127.0.0.1 </dev/null >"$out" 2>&1; rc=$?
  [ $rc = 0 ] || stop_late $pid	# a server whose client failed may wait for ever
  wait $pid; rc2=$?
  PP_STATUS="server: status $rc2 on ${PP_LIBS:-nothing}, client: status $rc"
  [ $rc = 0 ] && [ $rc2 = 0 ]
}

# runtime NAME REQUIREMENT...: sets V to a Python environment with these packages of PyPI and no others,
# which are fetched once and kept in OFI_TEST_CACHE.
: "${OFI_TEST_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/ofi-test}"
runtime() {
  local lock r
  V=$OFI_TEST_CACHE/$1
  [ -e "$V/.complete" ] && return 0
  mkdir -p "$OFI_TEST_CACHE" && exec {lock}>"$V.lock" && flock "$lock" || return 1
  fetch "${@:2}"; r=$?
  exec {lock}>&-
  return $r
}
fetch() {
  [ -e "$V/.complete" ] && return 0
  rm -rf "$V" && python3 -m venv "$V" && "$V/bin/pip" install -q --retries 1 --timeout 30 --no-deps "$@" >"$WORK/pip.log" 2>&1 && touch "$V/.complete" && return 0
  tail -n 3 "$WORK/pip.log" >&2
  return 1
}

# diagnosed PATTERN COMMAND...: what the command has fi_doctor write to LOG begins with such a line. Where much else runs a
# process may get no processor for a while, and fi_doctor is right to say so, or sees too little to say anything: then it is
# asked again, as it is while it says what NOT_YET is.
diagnosed() {
  local pattern=$1 rc _; shift
  for _ in {1..30}; do
    "$@"; rc=$?
    [ $rc = 1 ] && head -1 "$LOG" | grep -qE "$pattern" && return 0
    [ $rc = 0 ] || grep -qE "gets no processor${NOT_YET:+|$NOT_YET}" "$LOG" || return 1
    sleep 1
  done
  return 1
}
# undiagnosed COMMAND...: the command finds nothing (exit code 0) within 30 attempts, or nothing but processes without a processor, as
# other processes may need all of them; its output is in LOG.
undiagnosed() {
  local _
  for _ in {1..30}; do
    "$@" && return 0
    ! grep -E '^process ' "$LOG" | grep -qvE 'gets no processor' && grep -qE 'gets no processor' "$LOG" && return 0
    sleep 1
  done
  return 1
}

# mpi PROVIDER NP PROGRAM...: Debian's Open MPI, all messages through libfabric.
mpi() {
  local prov=$1 np=$2; shift 2
  LD_LIBRARY_PATH=$ONLY with_net timeout 400 mpirun --oversubscribe -np "$np" --mca pml cm --mca mtl ofi \
    --mca mtl_ofi_provider_include "$prov" --mca btl self,vader -x LD_LIBRARY_PATH "$@" </dev/null
}
