"""What the strings under a key of a recording are: meant to be read, private as a whole, or unknown."""

from __future__ import annotations

import re

from distprof.run.secrets import SECRET_NAMES

# Their strings stay but for what in them looks private, or is known to be. In traces, then in recordings of our own.
_READ = """
    ph|cat|name|pid|tid|id|s|bp|cname|displayTimeUnit|labels|Input type|Input Dims|Input Strides|Concrete Inputs|
    Collective name|dtype|Process Group Name|Process Group ID|Process Group Description|Process Group Ranks|
    In split size|Out split size|Call stack|Module Hierarchy|Trace name|distributedInfo|backend|backend_config|pg_name|
    pg_desc|uid|ranks|comm|device|stream|correlation|finished|schemaVersion|baseTimeNanoseconds|External id|Device Type|
    schema|status|reason|signal|desc|module|params|dataset|mode|shapes|names|group|op|kind|requested|observed|device_type|
    setting|target|place|problems|activities|record|torch|distprof|python
"""
_KEPT = frozenset(key.strip() for key in _READ.split("|"))
# Their strings are private as a whole.
_PRIVATE = {
    "host": "host",
    "host_name": "host",
    "hostname": "host",
    "node": "host",
    "nodename": "host",
    "user": "user",
    "username": "user",
    "tw_user": "user",
    "traceName": "path",
    "run_dir": "path",
    "cwd": "path",
    "argv": "argument",
    "command": "argument",
    "environment": "environment",
    "run_id": "id",
    "boot_id": "id",
    "trace_id": "id",
    "key": "id",
    "error": "text",
    "exception": "text",
    "message": "text",
    "absent": "text",
    "why": "text",
    "unmet": "text",
}
_OURS = ("a rank failed",)  # what distprof compares an error with
# Numbers, in lists or alone; neither addresses nor dates nor what is as long as a number of a telephone.
_NUMBER = r"-?[0-9]{1,6}(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,3})?"
_TELLS_NOTHING = re.compile(
    rf"[\s\[(]*(?:{_NUMBER}[\s\[\](),x]+)*(?:{_NUMBER})?|[Tt]rue|[Ff]alse|TRUE|FALSE|[Nn]one|null"
)
_GENERIC = {
    "host": ("localhost", "localhost.localdomain", "removed", "unknown"),
    "user": ("root", "user", "users", "nobody", "ubuntu", "admin", "runner", "shared", "removed"),
}
KEEP, SECRET = "keep", "secret"


def kind_of_key(key: str) -> str:
    """What a string under this key is: KEEP, or a kind of `names.KINDS`."""
    if key in _KEPT:
        return KEEP
    return _PRIVATE.get(key) or (SECRET if SECRET_NAMES.search(key) else "value")


def is_secret(key: str) -> bool:
    """Whether also a number under this key is private."""
    return kind_of_key(key) == SECRET


def is_kept_whole(kind: str, text: str) -> bool:
    """Whether a string of a private kind tells nothing: it is empty, masked, a small number, generic."""
    if text in ("", "***", *_OURS) or text.lower() in _GENERIC.get(kind, ()):
        return True
    return kind == "value" and _TELLS_NOTHING.fullmatch(text) is not None
