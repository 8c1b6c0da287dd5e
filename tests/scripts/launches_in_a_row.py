"""Launches a short training again and again, alone in its namespaces, and prints what is there then and was not before.

What torchrun itself leaves behind of the same training, at each launch, is told apart by its name.

launches_in_a_row.py COUNT
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPORTED_EVERY = 10
_RANDOM = re.compile(r"_[a-z0-9_]{8}$")  # what tempfile appends
_TIME_WAIT = "06"  # the kernel's, of a connection that both sides have closed


def main() -> None:
    count = int(sys.argv[1])
    script = Path(__file__).with_name("steps.py")
    first = there()["temporary files"]
    alone = ["--standalone", "--nproc-per-node", "1"]
    plain = [sys.executable, "-m", "torch.distributed.run", *alone, str(script), "--steps", "2", "--pause-ms", "0"]
    subprocess.run(plain, capture_output=True, check=True)
    before = there()
    torchruns = {_RANDOM.sub("_*", name) for name in before["temporary files"] - first}
    for number in range(count):
        run_dir = Path(tempfile.gettempdir()) / "run of a launch in a row"
        reported = number % REPORTED_EVERY == 0
        command = [sys.executable, "-m", "distprof", "launch", *alone]
        command += ["--schedule", "wait=0,warmup=0,active=1", "--run-dir", str(run_dir)]
        command += [] if reported else ["--no-report"]
        done = subprocess.run(
            [*command, str(script), "--steps", "2", "--pause-ms", "0"], capture_output=True, text=True, check=False
        )
        if done.returncode or "Traceback" in done.stderr:
            sys.exit(f"launch {number} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        if temporary := [path.name for path in run_dir.rglob("*") if path.suffix == ".tmp"]:
            sys.exit(f"launch {number} left {temporary}")
        shutil.rmtree(run_dir)
        left = {what: sorted(names - before[what]) for what, names in there().items()}
        left["temporary files"] = [name for name in left["temporary files"] if _RANDOM.sub("_*", name) not in torchruns]
        if any(left.values()):
            break
    print(json.dumps({"launches": number + 1, "left": left, "torchruns": sorted(torchruns)}))


def there() -> dict[str, set[str]]:
    """What a launch may leave behind, by kind."""
    return {
        "processes": _processes(),
        "sockets": _sockets(),
        "shared memory": {*_names("/dev/shm"), *_lines("/proc/sysvipc/shm")},
        "temporary files": _names(tempfile.gettempdir()),
    }


def _processes() -> set[str]:
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (folder / "stat").exists():
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":  # who starts nothing but launches does not reap what others leave
                found.add((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def _sockets() -> set[str]:
    internet = {
        f"{kind} {words[1]} {words[2]}"
        for kind in ("tcp", "tcp6", "udp", "udp6")
        for words in map(str.split, _lines(f"/proc/net/{kind}"))
        if words[3] != _TIME_WAIT
    }
    return internet | {f"unix {line.split()[-1]}" for line in _lines("/proc/net/unix")}


def _names(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()[1:]


if __name__ == "__main__":
    main()
