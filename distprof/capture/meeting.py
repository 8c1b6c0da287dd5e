"""How the ranks find each other for the clock probes: through a clone of the job's store.

A clone has a connection of its own: a blocking call on the training's would hold up the training.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from distprof.capture.exchanges import Address

_OFFER = "distprof/clock/reference"
_FAR_END = "distprof/clock/last"
_LOOPBACK = "127.0.0.1"
_OFFER_WITHIN_S = 60.0
_FAR_END_WITHIN_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class NoMeeting(Exception):
    """The ranks cannot find each other; the message says why."""


class Meeting:
    """One rank's side of it. To be made and used on a thread that may wait.

    Args:
        store: the store of the default process group.
        rank: this one.
        world_size: ranks of the group.
        pause: waits so many seconds; True if there is no more need to meet.

    Raises:
        NoMeeting: from all methods.
        OSError, RuntimeError: the network, or the store, failed.
    """

    def __init__(self, store: Any, rank: int, world_size: int, pause: Callable[[float], bool]) -> None:
        self._host, self._port = _rendezvous(store)
        self._store = store.clone()
        self._rank = rank
        self._last = world_size - 1
        self._one_host = os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)
        self._pause = pause

    def interface(self) -> str:
        """The local address that the reference rank listens at: where the other ranks know this host by."""
        if self._one_host:
            return _LOOPBACK
        local = _local_address(self._host, self._port)
        if ipaddress.ip_address(local).is_loopback:
            # This host is the rendezvous' own and may call itself by a name of the loopback (Debian's 127.0.1.1).
            far = self._read(_FAR_END, _FAR_END_WITHIN_S)
            local = local if far is None else _local_address(*far["address"])
        return local

    def offer(self, address: Address | None, token: bytes = b"") -> None:
        """Tell all others where to ask, and what to show; None: that there is nobody to ask."""
        self._write(_OFFER, {"address": address, "token": token.hex()})

    def find(self) -> tuple[str, Address, bytes]:
        """Wait for the reference rank's offer: the local address by which it is reached, its address, and the token."""
        if not self._one_host and self._rank == self._last:
            self._write(_FAR_END, {"address": (_local_address(self._host, self._port), self._port)})
        offer = self._read(_OFFER, _OFFER_WITHIN_S)
        if offer is None:
            raise NoMeeting(f"rank 0 offered no clock probes within {_OFFER_WITHIN_S:g} s")
        if offer["address"] is None:
            raise NoMeeting("rank 0 could not offer clock probes")
        host, port = offer["address"]
        return _local_address(host, port), (host, port), bytes.fromhex(offer["token"])

    def close(self) -> None:
        """Close the clone's connection."""
        self._store = None

    def _write(self, key: str, value: dict[str, Any]) -> None:
        self._store.set(key, json.dumps(value))

    def _read(self, key: str, within_s: float) -> dict[str, Any] | None:
        # A blocking `get` could not be ended.
        end = time.monotonic() + within_s
        pause = _FIRST_PAUSE_S
        while not self._store.check([key]):
            if time.monotonic() > end:
                return None
            if self._pause(pause):
                raise NoMeeting("the training ended before the ranks had found each other")
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        value: dict[str, Any] = json.loads(self._store.get(key))
        return value


def _rendezvous(store: Any) -> Address:
    base = store
    while hasattr(base, "underlying_store"):
        base = base.underlying_store
    host, port = getattr(base, "host", None), getattr(base, "port", None)
    if not isinstance(host, str) or not isinstance(port, int):
        raise NoMeeting(f"the process group was made with a {type(base).__name__}, which tells no host to meet at")
    return host, port


def _local_address(host: str, port: int) -> str:
    """The address of this host that packets to `host` are sent from."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind, protocol) as route:
                route.connect(address)
                return str(route.getsockname()[0])
        except OSError as error:
            failure = error
    raise NoMeeting(f"no way leads to {host}: {failure}")
