# shellcheck shell=bash
# The common part of tests with fi_pingpong between two hosts with two links of 400 Mb/s (ctest/faults/corrupter): rails_test and
# mptcp_test source it after ctest/lib.sh and tests_of.
: "${LIBFABRIC_DIR:=$OUT/prefix/lib}"
LOG=$WORK/log
# between_hosts: starts the script again between the hosts, and ends with its status; returns there. Only root may make networks.
between_hosts() {
  [ -z "${CORRUPTER_HOSTS:-}" ] || return 0
  local rc
  [ "$(id -u)" = 0 ] || { skip "only root may make network namespaces"; total; }
  need iproute2 python3 >"$LOG" 2>&1 || { skip "no package iproute2 or python3"; total; }
  "$ROOT/ctest/faults/corrupter" --links 2 --rate 400 -- "$0"; rc=$?
  [ $rc != 77 ] || { skip "no such network"; total; }
  exit $rc
}
bin=$LIBFABRIC_DIR/../bin
# start OPTIONS... : SERVER... -- CLIENT...: fi_pingpong on hosts 0 and CLIENT_HOST, with these options, each prefixed by its words of
# env(1), at the next port. Sets SERVER and CLIENT to their numbers.
start() {
  local options=(-p "${PROVIDER:-tcp}" -c) server=()
  while [ "$1" != : ]; do options+=("$1"); shift; done; shift
  while [ "$1" != -- ]; do server+=("$1"); shift; done; shift
  port=$((port + 1))
  on 0 env LD_LIBRARY_PATH="$LIBFABRIC_DIR" "${server[@]}" "${SERVER_BIN:-$bin}/fi_pingpong" "${options[@]}" -B $port >"$WORK/server" 2>&1 & SERVER=$!
  for _ in {1..200}; do on 0 ss -Hltn "sport = :$port" | grep -q . && break; sleep 0.02; done
  on "${CLIENT_HOST:-1}" env LD_LIBRARY_PATH="$LIBFABRIC_DIR" "$@" "${CLIENT_BIN:-$bin}/fi_pingpong" "${options[@]}" -P $port "$CORRUPTER_ADDR0" >"$LOG" 2>&1 & CLIENT=$!
}
# finish: waits for both, and succeeds if both do
finish() {
  local r s
  wait "$CLIENT"; r=$?
  [ $r = 0 ] || stop_late "$SERVER"
  wait "$SERVER"; s=$?
  cat "$WORK/server" >>"$LOG"
  [ $r = 0 ] && [ $s = 0 ]
}
# carried LINK: bytes sent by host 1 on a link, so far
carried() { on 1 awk -v link="eth$1:" '$1 == link { print $10 }' /proc/net/dev; }
# link NUMBER STATE: pulls the cables of a link at the switch, or plugs them in and waits until the hosts have noticed
link() {
  local i _
  for i in 0 1; do
    ip -n switch link set "h${i}l$1" "$2"
    [ "$2" = down ] || for _ in {1..100}; do ip -n "host$i" -br link show "eth$1" | grep -q ' UP ' && break; sleep 0.05; done
  done
}
