#!/usr/bin/env bash
# One machine, all its ranks: `distprof launch` stands where torchrun stood, and ends as torchrun would.
#
#   NPROC=8 launch/workstation.sh train.py --epochs 3
set -euo pipefail

exec distprof launch --standalone --nproc-per-node "${NPROC:-gpu}" "$@"
