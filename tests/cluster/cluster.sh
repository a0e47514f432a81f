#!/usr/bin/env bash
# Three hosts on this machine, and a SLURM cluster on them: the controller ctl and the nodes node1 and node2.
#
#   cluster.sh up FOLDER             start the hosts and SLURM; their state, logs and /etc/hosts files are in FOLDER
#   cluster.sh on HOST COMMAND ...   run a command on a host (FOLDER in the variable CLUSTER)
#   cluster.sh link HOST up|down     connect a host, or cut its connection
#   cluster.sh down FOLDER           stop everything that "up" has started
#
# A host is a network namespace with an address, a host name and an /etc/hosts file. All hosts share the files of this
# machine. Needs root, and the Debian packages slurm-wlm, munge and iproute2.
set -euo pipefail

declare -A ADDRESSES=([ctl]=10.77.0.254 [node1]=10.77.0.1 [node2]=10.77.0.2)
BRIDGE=posenet0
STARTUP_SECONDS=60

# Write the /etc/hosts file with which a host starts. Tests change these files in place.
write_hosts_file() {
  local name
  echo "127.0.0.1 localhost"
  for name in "${!ADDRESSES[@]}"; do echo "${ADDRESSES[$name]} $name"; done
}

add_host() {
  local host=$1
  ip netns add "posenet-$host"
  ip link add "pn-$host" type veth peer name eth0 netns "posenet-$host"
  ip link set "pn-$host" master "$BRIDGE" up
  ip -n "posenet-$host" address add "${ADDRESSES[$host]}/24" dev eth0
  ip -n "posenet-$host" link set eth0 up
  ip -n "posenet-$host" link set lo up
  write_hosts_file > "$CLUSTER/hosts/$host"
}

run_on() {
  local host=$1
  shift
  exec nsenter --net="/run/netns/posenet-$host" unshare --uts --mount bash -c '
    hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"' - "$host" "$CLUSTER/hosts/$host" "$@"
}

start_slurm() {
  local here node
  here=$(dirname "$(realpath "$0")")
  sed "s#@FOLDER@#$CLUSTER#" "$here/slurm.conf.in" > "$CLUSTER/slurm.conf"
  mkdir -p /run/munge
  chown munge: /run/munge
  [ -s /etc/munge/munge.key ] || mungekey --create --force
  if ! pgrep -x munged > /dev/null; then
    runuser -u munge -- munged --pid-file=/run/munge/posenet.pid
  fi
  export SLURM_CONF=$CLUSTER/slurm.conf
  "$0" on ctl slurmctld
  for node in node1 node2; do "$0" on "$node" slurmd -N "$node"; done
  for _ in $(seq "$STARTUP_SECONDS"); do
    [ "$("$0" on ctl sinfo -h -o '%D %t' 2> /dev/null)" = "2 idle" ] && return
    sleep 1
  done
  echo "the nodes do not start; see $CLUSTER/log" >&2
  return 1
}

up() {
  local host
  mkdir -p "$CLUSTER"/{hosts,log,state,spool/node1,spool/node2}
  ip link add "$BRIDGE" type bridge
  ip link set "$BRIDGE" up
  for host in "${!ADDRESSES[@]}"; do add_host "$host"; done
  start_slurm
}

# Stop a process and wait for its end, so that "up" does not take it for a running one.
end_process() {
  kill "$1" 2> /dev/null || return 0
  for _ in $(seq 50); do
    kill -0 "$1" 2> /dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$1" 2> /dev/null || true
}

down() {
  local file host
  for file in "$CLUSTER"/state/*.pid /run/munge/posenet.pid; do
    if [ -s "$file" ]; then end_process "$(cat "$file")"; fi
  done
  for host in "${!ADDRESSES[@]}"; do
    # What still runs on the host, such as the steps of a job, would keep its network.
    ip netns pids "posenet-$host" 2> /dev/null | xargs --no-run-if-empty kill -KILL 2> /dev/null || true
    ip link delete "pn-$host" 2> /dev/null || true # a namespace disappears only with its last process
    ip netns delete "posenet-$host" 2> /dev/null || true
  done
  ip link delete "$BRIDGE" 2> /dev/null || true
}

command=${1:-}
shift || true
case $command in
  up) CLUSTER=$(realpath -m "$1") && export CLUSTER && up ;;
  on) run_on "$@" ;;
  link) ip -n "posenet-$1" link set eth0 "$2" ;;
  down) CLUSTER=$(realpath -m "$1") && down ;;
  *) sed -n '2,/^set/{/^#/p}' "$0" && exit 2 ;;
esac
