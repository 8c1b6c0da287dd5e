"""A sitecustomize that was there before distprof's."""

import builtins

builtins.users_sitecustomize_ran = True  # type: ignore[attr-defined]
