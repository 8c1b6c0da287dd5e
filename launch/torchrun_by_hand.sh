#!/usr/bin/env bash
# Two or more hosts by hand, with torchrun itself, and without a file system that they share. On each host:
#
#   NODE=0 NODES=2 FIRST=host0 NPROC=8 launch/torchrun_by_hand.sh train.py     # on host0
#   NODE=1 NODES=2 FIRST=host0 NPROC=8 launch/torchrun_by_hand.sh train.py     # on host1
#
# Then copy the run directories to one place; they are joined by the run's id:
#
#   distprof report runs/host0 runs/host1
set -euo pipefail

# The same on all hosts, and another one for each run.
id=${RUN_ID:-$FIRST-$(date +%Y%m%d)}
run=${RUNS:-distprof-runs}/$id-node$NODE
mkdir -p "$(dirname "$run")"

armed=$(distprof env --run-dir "$run" --run-id "$id")
eval "$armed"

exec torchrun --nnodes "$NODES" --node-rank "$NODE" --master-addr "$FIRST" --master-port "${PORT:-29500}" \
  --nproc-per-node "${NPROC:-gpu}" "$@"
