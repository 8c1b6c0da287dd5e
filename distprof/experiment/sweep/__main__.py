"""`python -m distprof.experiment.sweep -m script=train.py nproc_per_node=4 loader.num_workers=0,2,4`."""

from __future__ import annotations

import sys

from distprof.experiment.sweep.app import main
from distprof.run.secrets import mask_arguments

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], mask_arguments(["python", "-m", "distprof.experiment.sweep", *sys.argv[1:]])).status)
