"""`python -m distprof`."""

from __future__ import annotations

import sys

from distprof.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
