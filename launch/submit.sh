#!/usr/bin/env bash
# SLURM without a batch file: `distprof submit` writes one, submits it, and here waits for the end and shows the report.
# Run it on a login node, in a folder that all nodes see: the run directory is made below it.
#
#   NODES=2 NPROC=8 PARTITION=gpu launch/submit.sh --slurm gpus_per_node=8 train.py --epochs 3
set -euo pipefail

exec distprof submit --wait --nodes "${NODES:-2}" --nproc-per-node "${NPROC:-gpu}" --time "${MINUTES:-60}" \
  ${PARTITION:+--partition "$PARTITION"} "$@"
