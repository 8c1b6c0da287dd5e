"""Several 'hosts' on this machine: network namespaces with host names of their own, and links with a delay.

The kernel cannot delay packets, so each host's only link is a tun device whose other end is here: a thread hands
packets on, when their time has come.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import skip_but_in_ci

LINK = "link0"
_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_NETWORK = "10.201.7"
_PACKET = 65536

Delay = Callable[[int, int], float]


@dataclass(frozen=True)
class Host:
    """A host of the network."""

    number: int
    namespace: str

    @property
    def address(self) -> str:
        return f"{_NETWORK}.{self.number + 1}"

    def command(self, *words: str) -> list[str]:
        """`words`, as they are run on this host."""
        named = f'hostname host{self.number} && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", named, "sh", *words]


@contextmanager
def hosts(count: int, delay_s: Delay) -> Iterator[list[Host]]:
    """So many hosts. A packet from the i-th to the j-th takes `delay_s(i, j)` seconds."""
    if os.geteuid() != 0 or not _TUN.exists() or not shutil.which("ip"):
        skip_but_in_ci("hosts in namespaces need root, /dev/net/tun and ip (Debian: iproute2)")
    made = [Host(number, f"distprof-{os.getpid()}-{number}") for number in range(count)]
    with contextlib.ExitStack() as stack:
        ends = [_plug(host, stack) for host in made]
        over = threading.Event()
        thread = threading.Thread(target=_carry, args=(ends, delay_s, over))
        thread.start()
        stack.callback(thread.join)
        stack.callback(over.set)
        yield made


def _plug(host: Host, stack: contextlib.ExitStack) -> int:
    """Make the host and its link; the descriptor of the link's end here."""
    _ip("netns", "add", host.namespace)
    stack.callback(_ip, "netns", "delete", host.namespace)
    end = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    stack.callback(os.close, end)
    name = f"dp{os.getpid()}n{host.number}"
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    _ip("link", "set", name, "netns", host.namespace, "name", LINK)
    _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", LINK)
    for link in ("lo", LINK):
        _ip("-n", host.namespace, "link", "set", link, "up")
    return end


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _carry(ends: list[int], delay_s: Delay, over: threading.Event) -> None:
    waiting: list[tuple[float, int, int, bytes]] = []  # when, in which order, where to, what
    order = itertools.count()
    prefix = socket.inet_aton(f"{_NETWORK}.0")[:3]
    while not over.is_set():
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
        for end in select.select(ends, [], [], patience)[0]:
            with contextlib.suppress(BlockingIOError):
                packet = os.read(end, _PACKET)
                source, target = ends.index(end), packet[19] - 1  # IPv4: the last byte of the destination
                if packet[0] >> 4 == 4 and packet[16:19] == prefix and 0 <= target < len(ends):
                    due = time.monotonic() + delay_s(source, target)
                    heapq.heappush(waiting, (due, next(order), target, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # the link is full, or down
                os.write(ends[target], packet)
