"""Names: which kernels are communication, and which of torch's collectives a name of a backend means."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

# Names of the backends' operations that mean one of torch's collectives; other names are kept as they are.
# gloo does a reduce-scatter as an all-reduce and says so.
KINDS = {
    "_all_gather_base": "all_gather",
    "_all_gather_oop": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "_reduce_scatter_oop": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_reduce_coalesced": "all_reduce",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_barrier": "barrier",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_to_allv": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
}
# Kinds in which every end comes after every start.
SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
# Kinds in which every end comes after the root's start, and those in which the root's end comes after every start.
FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")
POINT_TO_POINT = ("send", "recv")
# A kernel whose name tells that it sends and receives, and not for which collective.
SEND_RECV = "send_recv"
UNKNOWN = "unknown"
UNCLASSIFIED = "unclassified"

# What the own name (see `own_name`) of a kernel that communicates looks like, in any case; the first that is found
# holds. A kind beside it is the kind of all these kernels; None: the name says.
PATTERNS: tuple[tuple[str, str | None], ...] = (
    (r"^(?:.*::)?_?(?:nccl|rccl)(?:\w*kernel|_?(?:all|reduce|broadcast|send|recv))", None),  # NCCL, RCCL
    (r"^(?:.*::)?mscclKernel", None),  # RCCL with MSCCL
    (r"^(?:.*::)?(?:oneccl|hccl|hcom)", None),  # oneCCL (XPU), HCCL (Ascend, Gaudi)
    (r"^vllm::cross_device_reduce", "all_reduce"),
    (r"^(?:sglang|trtllm|tensorrt_llm)\w*::(?:.*::)?\w*all_?reduce", "all_reduce"),
    (r"^deep_ep::(?:.*::)?(?:dispatch|combine)", "all_to_all"),
    (r"^deep_ep::(?:.*::)?(?:notify_dispatch|barrier)", "barrier"),
    (r"^(?:.*::)?(?:one_shot|two_shot|multimem)_(?:all_reduce|all_gather|reduce_scatter)", None),  # symmetric memory
)
# A name with one of these may be communication. Compilers name kernels after the operators that they fused, and torch's
# own kernels reduce and gather within a device.
_LIKELY = r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|nvshmem|send_?recv|cross_device"
_NEVER = r"^(?:triton_|at::|c10::|cub::|cutlass|thrust::)"
_BY_NAME: tuple[tuple[str, str], ...] = (
    (r"all_?reduce", "all_reduce"),
    (r"all_?gather", "all_gather"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?to_?all|a2a", "all_to_all"),
    (r"send_?recv", SEND_RECV),
    (r"broadcast|bcast", "broadcast"),
    (r"barrier", "barrier"),
    (r"reduce", "reduce"),
)


def kind_of(operation: str) -> str:
    """torch's name for a backend's operation: `c10d::allreduce_`, `nccl:_all_gather_base`, `allreduce_coalesced`.

    After a blank comes who takes part in it: `nccl:send 0->1`.
    """
    name = re.sub(r"^(?:c10d::|\w+:)", "", operation).partition(" ")[0].removesuffix("_")
    return KINDS.get(name, name)


def kinds_by_name(names: pl.Series, patterns: Sequence[tuple[str, str | None]] = ()) -> pl.Series:
    """What each kernel is by its name alone: a kind, `unknown` for communication of a kind that the name does not tell,
    `unclassified` for what looks like communication, null for what does not.

    Args:
        patterns: tried before `PATTERNS`.

    Raises:
        re.error: one of `patterns` is no regular expression.
    """
    compiled = [(re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in (*patterns, *PATTERNS)]
    distinct = names.unique().to_list()
    found = {name: _kind(name, compiled) for name in distinct}
    return names.replace_strict(found, return_dtype=pl.String)


def own_name(kernel: str) -> str:
    """A kernel's name without return type, templates and arguments: `void a::b<c>(d)` is `a::b`."""
    name = kernel.replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0].rsplit(" ", 1)[-1]


def _kind(kernel: str, patterns: list[tuple[re.Pattern[str], str | None]]) -> str | None:
    name = own_name(kernel)
    for pattern, kind in patterns:
        if pattern.search(name):
            by_name = (told for part, told in _BY_NAME if re.search(part, name, re.IGNORECASE))
            return kind or next(by_name, UNKNOWN)
    if re.search(_LIKELY, name, re.IGNORECASE) and not re.search(_NEVER, name):
        return UNCLASSIFIED
    return None
