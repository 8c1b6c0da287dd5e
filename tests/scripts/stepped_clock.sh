#!/bin/bash
# Runs $PYTHON with the arguments; as one of the ranks $STEPPED with a clock that is off by what stands in $STEP_FILE,
# which may change meanwhile.
if [[ " $STEPPED " == *" $RANK "* ]]; then
  # Without the 'fix' waits for a condition are none but spin (libfaketime 0.9.10).
  export FAKETIME_TIMESTAMP_FILE=$STEP_FILE FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 \
    FAKETIME_FORCE_MONOTONIC_FIX=0 LD_PRELOAD=$LIBFAKETIME
fi
exec "$PYTHON" "$@"
