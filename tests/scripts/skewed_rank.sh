#!/bin/bash
# Runs $PYTHON with the arguments; as rank 1 with another clock, which $LIBFAKETIME makes as $SKEW says.
if [ "$RANK" = 1 ]; then
  # Without the 'fix' waits for a condition are none but spin (libfaketime 0.9.10).
  export FAKETIME=$SKEW FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_FORCE_MONOTONIC_FIX=0 LD_PRELOAD=$LIBFAKETIME
fi
exec "$PYTHON" "$@"
