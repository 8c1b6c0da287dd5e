"""A script as it is in another git revision: its tree, laid out beside the experiment's results.

`git archive` and no worktree: nothing is written into the user's repository.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from distprof.run.config import ConfigError


def resolve(revision: str, folder: Path) -> str:
    """The full name of a revision of the repository that `folder` lies in.

    Raises:
        ConfigError: there is no repository, or no such revision.
    """
    name = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if name is None:
        raise ConfigError(f"git={revision}: {folder.resolve()} is in no git repository that has it")
    return name.decode().strip()


def lay_out(revision: str, script: Path, trees: Path) -> Path:
    """The script in its tree at `revision`, below `trees`.

    Args:
        revision: full name, of `resolve`.
        script: the script as it lies in the repository now; it may be missing there.
        trees: a folder for trees; one that is there already is used again.

    Raises:
        ConfigError: the revision has no such script.
    """
    folder = script.resolve().parent
    while not folder.is_dir():
        folder = folder.parent
    root = _git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        raise ConfigError(f"{script} is in no git repository")
    inside = script.resolve().relative_to(Path(root.decode().strip()).resolve())
    tree = trees / revision
    if not tree.is_dir():
        archive = _git(Path(root.decode().strip()), "archive", "--format=tar", revision)
        if archive is None:
            raise ConfigError(f"git cannot write the tree of {revision}")
        unpacked = trees / f".{revision}.tmp"
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            # Python before 3.11.4, as Debian 12 has it, knows no filters.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(unpacked)
        unpacked.rename(tree)
    if not (tree / inside).is_file():
        raise ConfigError(f"revision {revision[:12]} has no {inside}")
    return tree / inside


def _git(folder: Path, *words: str) -> bytes | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=False)
    except OSError as error:
        raise ConfigError(f"git cannot be run ({error.strerror})") from error
    return done.stdout if done.returncode == 0 else None
