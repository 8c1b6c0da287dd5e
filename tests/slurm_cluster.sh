#!/usr/bin/env bash
# A SLURM of four virtual nodes with accounting on this machine, without systemd, for the tests.
#
#   slurm_cluster.sh up     STATE_DIR        install what is missing (Debian), start, wait until all nodes are idle
#   slurm_cluster.sh fail   STATE_DIR NODE   as if its power were cut: kill all that runs on it, and tell SLURM
#   slurm_cluster.sh repair STATE_DIR NODE   start it again, with an empty spool, and wait until it is idle
#   slurm_cluster.sh down   STATE_DIR        cancel all jobs, stop what `up` started and nothing else, undo /etc/hosts
#
# SLURM_CONF=STATE_DIR/etc/slurm.conf then leads SLURM's commands to it. Partition `high` preempts jobs in `main`, which
# are queued again. STATE_DIR must be short: it holds sockets.
set -euo pipefail

command=$1
state=$2
nodes=4 cpus=8 memory=65536 grace=5
port=${DISTPROF_SLURM_PORT:-26917}
mark="# distprof-tests:$state"
export PATH=$PATH:/usr/sbin:/sbin
export SLURM_CONF=$state/etc/slurm.conf

die() { echo "slurm_cluster: $*" >&2; exit 1; }

# Each process that is started leaves `pid starttime` behind; only what still has both is ever signalled.
start_time() { awk '{sub(/.*\) /,""); if ($1 != "Z") print $20}' "/proc/$1/stat" 2>/dev/null || true; }

alive() { # NAME
  local pid began
  [ -f "$state/run/$1.pid" ] && read -r pid began <"$state/run/$1.pid" || return 1
  [ -n "${began:-}" ] && [ "$(start_time "$pid")" = "$began" ]
}

start() { # NAME COMMAND...
  local name=$1 pid
  shift
  setsid "$@" >>"$state/log/$name.out" 2>&1 </dev/null &
  pid=$!
  disown "$pid"
  echo "$pid $(start_time "$pid")" >"$state/run/$name.pid"
}

stop() { # SECONDS NAME...
  local end=$((SECONDS + $1)) name pid _
  shift
  for name; do
    if alive "$name"; then read -r pid _ <"$state/run/$name.pid" && kill -TERM "$pid" 2>/dev/null || true; fi
  done
  for name; do
    while alive "$name" && ((SECONDS < end)); do sleep 0.05; done
    if alive "$name"; then read -r pid _ <"$state/run/$name.pid" && kill -KILL "$pid" 2>/dev/null || true; fi
  done
}

wait_for() { # SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >"$state/log/wait.out" 2>&1; do
    ((SECONDS < end)) || { tail -n 6 "$state"/log/*.out >&2; die "gave up waiting for $what"; }
    sleep 0.1
  done
}

install_packages() {
  local each
  for each in slurmctld slurmd srun munged slurmdbd mariadbd mariadb-install-db; do
    command -v "$each" >/dev/null || break
    each=
  done
  [ -z "$each" ] && compgen -G '/usr/lib/*/slurm-wlm/accounting_storage_mysql.so' >/dev/null && return
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -qq --no-install-recommends \
    slurmctld slurmd slurm-client munge slurmdbd slurm-wlm-mysql-plugin mariadb-server; } >"$state/apt.out" 2>&1 \
    || { tail -n 5 "$state/apt.out" >&2; die "apt-get could not install SLURM"; }
}

forget_hosts() { # /etc/hosts may be a mount: it is written in place
  local others
  grep -qF "$mark" /etc/hosts || return 0
  others=$(grep -vF "$mark" /etc/hosts || true)
  printf '%s\n' "$others" >/etc/hosts
}

configure() {
  cat >"$state/etc/slurm.conf" <<CONF
ClusterName=distprof
SlurmctldHost=localhost
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$state/run/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=$((port + 1))
AccountingStorageUser=root
AccountingStoragePass=$state/run/munge.socket
JobCompType=jobcomp/none
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool/%n
SlurmctldPidFile=$state/run/slurmctld.own.pid
SlurmdPidFile=$state/run/%n.own.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/%n.log
SlurmctldDebug=info
SlurmdDebug=info
SlurmdParameters=config_overrides
ReturnToService=2
FirstJobId=$(($(date +%s) % 6000000 * 10 + 1))
JobRequeue=1
KillWait=5
OverTimeLimit=0
MinJobAge=300
InactiveLimit=0
SlurmctldTimeout=300
SlurmdTimeout=300
TCPTimeout=5
MessageTimeout=30
PropagateResourceLimits=NONE
NodeName=DEFAULT CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=$memory State=UNKNOWN
$(for ((i = 1; i <= nodes; i++)); do echo "NodeName=node$i NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + 2 + i))"; done)
PartitionName=main Nodes=node[1-$nodes] Default=YES MaxTime=INFINITE DefMemPerCPU=100 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=$grace
PartitionName=high Nodes=node[1-$nodes] Default=NO MaxTime=INFINITE DefMemPerCPU=100 State=UP PriorityTier=10 PreemptMode=OFF
CONF
  cat >"$state/etc/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$state/run/munge.socket
DbdHost=localhost
DbdPort=$((port + 1))
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((port + 2))
StorageUser=root
StorageLoc=slurm_acct
LogFile=$state/log/slurmdbd.log
PidFile=$state/run/slurmdbd.own.pid
DebugLevel=info
CONF
  chmod 600 "$state/etc/slurmdbd.conf"
}

usable() { timeout 10 sinfo -h -N -p main -o '%T' "$@" | grep -cE '^(idle|mixed|allocated|completing)$'; }
nodes_idle() { [ "$(usable)" = "$nodes" ]; }
node_idle() { [ "$(usable -n "$1")" = 1 ]; }
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
register() { sacctmgr -n list cluster format=cluster%20 | grep -qw distprof || sacctmgr -i add cluster distprof; }

start_node() { # with a host name of its own, which all that it starts shares
  mkdir -p "$state/spool/$1"
  start "$1" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$1" slurmd -D -N "$1" -f "$SLURM_CONF"
}

# Marked as down alone, a node that is well reports back at once, with the job that was taken from it; a job that is queued
# again then meets itself there, and SLURM drains the node and holds the job.
fail() { # NODE
  local pid host process _
  alive "$1" || die "$1 does not run"
  read -r pid _ <"$state/run/$1.pid"
  host=$(readlink "/proc/$pid/ns/uts")
  [ "$host" != "$(readlink /proc/self/ns/uts)" ] || die "$1 has not started yet"
  kill -KILL "$pid" # first, so that it reports nothing of the others
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/uts" 2>/dev/null)" = "$host" ] && kill -KILL "${process#/proc/}" 2>/dev/null || true
  done
  scontrol update "nodename=$1" state=down reason=broken
}

repair() { # NODE
  rm -rf "$state/spool/$1"
  start_node "$1"
  wait_for 60 "$1" node_idle "$1"
}

up() {
  [ "$(id -u)" = 0 ] || die "must be root"
  mkdir -p "$state"/{run,ctld,spool,log,etc,db,munge}
  chmod 755 "$state"
  chmod 700 "$state/munge"
  install_packages
  configure
  dd if=/dev/urandom of="$state/munge/key" bs=128 count=1 status=none
  chmod 600 "$state/munge/key"
  forget_hosts
  [ -z "$(tail -c1 /etc/hosts)" ] || echo >>/etc/hosts
  echo "127.0.0.1$(printf ' node%d' $(seq "$nodes")) $mark" >>/etc/hosts

  start munged munged --foreground --force --num-threads=2 --key-file="$state/munge/key" \
    --socket="$state/run/munge.socket" --pid-file="$state/run/munged.own.pid" --log-file="$state/log/munged.log" \
    --seed-file="$state/munge/seed"
  mariadb-install-db --no-defaults --user=root --datadir="$state/db" --auth-root-authentication-method=normal \
    --skip-test-db --skip-name-resolve >"$state/log/mariadb-install.out" 2>&1
  start mariadbd mariadbd --no-defaults --user=root --datadir="$state/db" --socket="$state/run/mariadb.socket" \
    --pid-file="$state/run/mariadbd.own.pid" --bind-address=127.0.0.1 --port=$((port + 2)) --skip-name-resolve \
    --innodb-flush-log-at-trx-commit=0 --innodb-buffer-pool-size=64M --innodb-log-file-size=48M \
    --innodb-lock-wait-timeout=900 --log-error="$state/log/mariadbd.log"
  wait_for 60 munge munge -n -S "$state/run/munge.socket"
  wait_for 60 mariadbd mariadb-admin --no-defaults --socket="$state/run/mariadb.socket" -u root ping
  start slurmdbd slurmdbd -D
  wait_for 60 slurmdbd answers $((port + 1))
  wait_for 60 "the accounting" register
  start slurmctld slurmctld -D -f "$SLURM_CONF"
  wait_for 60 slurmctld answers "$port"
  for ((i = 1; i <= nodes; i++)); do start_node "node$i"; done
  wait_for 90 "nodes to be idle" nodes_idle
}

down() {
  [ -d "$state/run" ] || return 0
  if alive slurmctld; then
    timeout 10 scancel -u root >/dev/null 2>&1 || true
    for ((i = 0; i < 200; i++)); do [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break; sleep 0.1; done
  fi
  stop 10 slurmctld $(seq -f 'node%g' "$nodes")
  stop 10 slurmdbd
  stop 15 mariadbd
  stop 5 munged
  local process
  for process in /proc/[0-9]*; do # daemons of steps that hang; ours have our configuration in their environment
    [ "$(cat "$process/comm" 2>/dev/null)" = slurmstepd ] || continue
    if { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qxF "SLURM_CONF=$SLURM_CONF"; then
      kill -KILL "${process#/proc/}" 2>/dev/null || true
    fi
  done
  forget_hosts
}

case $command in
up | down) "$command" ;;
fail | repair) "$command" "$3" ;;
*) die "usage: $0 up|down STATE_DIR, or $0 fail|repair STATE_DIR NODE" ;;
esac
