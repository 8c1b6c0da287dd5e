"""What the strings under a key of a recording are: meant to be read, private as a whole, or unknown.

And what is ours, or torch's own, and stays whatever else is private: keys, kinds of zones, names of schemas.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from types import ModuleType

import msgspec

from distprof.run import manifest, nodes
from distprof.run.secrets import SECRET_NAMES
from distprof.run.settings import SETTINGS
from distprof.trace import columns, header, jsonlines, recordings
from distprof.trace.tables import ZONE_KINDS

# Their strings stay but for what in them looks private, or is known to be. In traces, then in recordings of our own.
_READ = """
    ph|cat|name|pid|tid|id|s|bp|cname|displayTimeUnit|labels|Input type|Input Dims|Input Strides|Concrete Inputs|
    Collective name|dtype|Process Group Name|Process Group ID|Process Group Description|Process Group Ranks|
    In split size|Out split size|Call stack|Module Hierarchy|Trace name|distributedInfo|backend|backend_config|pg_name|
    pg_desc|uid|ranks|comm|device|stream|correlation|finished|schemaVersion|baseTimeNanoseconds|External id|Device Type|
    schema|status|reason|signal|desc|module|params|dataset|mode|shapes|names|group|op|kind|requested|observed|device_type|
    kernel|setting|target|place|problems|activities|record|torch|distprof|python
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
# Keys of plain objects that distprof reads, and others of ours and of Kineto's that people and other tools know.
_PLAIN = """
    batch_size|broadcast_buffers|multiprocessing_context|ended_unix_ns|boundary|cpu_s|drains|lost|exchanges|threads|
    reference|kernel_stamps|timeout|Op count|
    unix_ns|exit_code|failures|first|unix_s|attempt|attempts|node_rank|nodes|local_rank|scheduler|probes|version|versions|
    rank|world_size|pg_config|pg_size|pg_count|nccl_version|deviceProperties|totalGlobalMem|computeMajor|computeMinor|
    maxThreadsPerBlock|numSms|warpSize|cuda_runtime_version|cuda_driver_version|profile_memory|record_shapes|with_stack|
    traceEvents|args|sort_index|Ev Idx|Record function id|Sequence number|Fwd thread id|Python id|Python parent id|
    Python module id|Profiler Event Index|context|queued|cbid|grid|block|registers per thread|shared memory|
    blocks per SM|warps per SM|est. achieved occupancy %|kernel_file|kernel_hash|kernel_backend|is_blocking|
    memory bandwidth (GB/s)|wait_on_stream|wait_on_cuda_event_record_corr_id|wait_on_cuda_event_id|
    Total Allocated|Total Reserved|Global rank start|Global rank stride|Group size|Src Rank|Dst Rank|In msg nelems|
    Out msg nelems
"""
# What defines our files, and what is read of a trace.
_MODULES = (recordings, jsonlines, columns, header, manifest, nodes)
_SCHEMA = re.compile(r"distprof\.[a-z]{1,20}\.v[0-9]{1,3}")
_OURS = ("a rank failed",)  # what distprof compares an error with
# Numbers, in lists or alone; neither addresses nor dates nor what is as long as a number of a telephone.
_NUMBER = r"-?[0-9]{1,6}(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,3})?"
_TELLS_NOTHING = re.compile(
    rf"[\s\[(]*(?:{_NUMBER}[\s\[\](),x]+)*(?:{_NUMBER})?|[Tt]rue|[Ff]alse|TRUE|FALSE|[Nn]one|null|0x[0-9a-fA-F]{{1,16}}"
)
_GENERIC = {
    "host": ("localhost", "localhost.localdomain", "removed", "unknown"),
    "user": ("root", "user", "users", "nobody", "ubuntu", "admin", "runner", "shared", "removed"),
}
KEEP, SECRET = "keep", "secret"


def _defined(module: ModuleType) -> Iterator[str]:
    """Keys of the structs and dataclasses of a module, as they stand in files."""
    for kind in vars(module).values():
        if not isinstance(kind, type) or kind.__module__ != module.__name__:
            continue
        if issubclass(kind, msgspec.Struct):
            yield from (field.encode_name for field in msgspec.structs.fields(kind))
        elif dataclasses.is_dataclass(kind):
            yield from (field.name for field in dataclasses.fields(kind))


KEYS = frozenset(
    _KEPT
    | _PRIVATE.keys()
    | SETTINGS.keys()
    | {name.rpartition(".")[2] for name in SETTINGS}
    | {key.strip() for key in _PLAIN.split("|")}
    | {key for module in _MODULES for key in _defined(module)}
)


def is_ours(key: str) -> bool:
    """Whether a key stays as it is, also where the script has an argument of that name."""
    return key in KEYS


def is_fixed(key: str, text: str) -> bool:
    """Whether a string under a key is one of those that are only written by distprof."""
    if key == "names":
        return text in ZONE_KINDS
    return (key == "schema" and _SCHEMA.fullmatch(text) is not None) or (key == "setting" and text in SETTINGS)


def kind_of_key(key: str) -> str:
    """What a string under this key is: KEEP, or a kind of `names.KINDS`."""
    if key in _KEPT:
        return KEEP
    return _PRIVATE.get(key) or (SECRET if key not in KEYS and SECRET_NAMES.search(key) else "value")


def is_secret(key: str) -> bool:
    """Whether also a number under this key is private."""
    return kind_of_key(key) == SECRET


def is_kept_whole(kind: str, text: str) -> bool:
    """Whether a string of a private kind tells nothing: it is empty, masked, a small number, generic."""
    if text in ("", "***", *_OURS) or text.lower() in _GENERIC.get(kind, ()):
        return True
    return kind == "value" and _TELLS_NOTHING.fullmatch(text) is not None
