"""One small request and its reply over UDP, stamped on both sides: what comparing two clocks is made of.

A socket that trusts nobody: each datagram carries the run's token, one that does not is dropped without a reply, and
a flood of those is left to the kernel, since reading it would take the interpreter's lock from the training. A reply
is as long as its request, so that nobody can have it multiplied towards a third.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

TOKEN_BYTES = 16
Address = tuple[str, int]

_PACKET = struct.Struct(f"!{TOKEN_BYTES}ssIIqq")  # token, kind, rank, number, received, sent
_ASK, _ANSWER, _BYE = b"?", b"!", b"."
_SO_TIMESTAMPNS = 35  # Python has no name for it; this is Linux's number on all common machines
_TIMESPEC = struct.Struct("@ll")
_QUEUE_BYTES = 1 << 16
_PATIENCE_S, _HURRY_S = 0.5, 0.05
_MOST_WRONG = 100
_MOST_LOST = 3
_WRONG_FORGOTTEN_S = 1.0
_MIRRORED = 8
_NARROW_NS = 100_000
_MIRROR_EVERY_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Packet:
    """A datagram of ours. `received` and `sent` are the answering rank's stamps, Unix ns; 0 in what is no answer."""

    kind: bytes
    rank: int
    number: int
    received: int = 0
    sent: int = 0

    def encode(self, token: bytes) -> bytes:
        """Its bytes."""
        return _PACKET.pack(token, self.kind, self.rank, self.number, self.received, self.sent)

    @classmethod
    def decode(cls, data: bytes, token: bytes) -> Packet | None:
        """Read it; None of bytes that are none, or carry another token."""
        if len(data) != _PACKET.size:
            return None
        theirs, kind, rank, number, received, sent = _PACKET.unpack(data)
        return cls(kind, rank, number, received, sent) if hmac.compare_digest(theirs, token) else None


def arrival(earliest: int, kernel: int | None, latest: int) -> int:
    """When a datagram came, in Unix ns: the kernel's stamp, which knows nothing of waits for the interpreter's lock.

    It is believed only between this process's own readings around it, since the process may see another clock than the
    kernel (libfaketime); else the later reading stands.
    """
    return kernel if kernel is not None and earliest <= kernel <= latest else latest


@dataclass(frozen=True, slots=True)
class Datagram:
    """What came: from whom, the kernel's stamp, and this process's own readings before and after, Unix ns."""

    data: bytes
    sender: Any
    earliest: int
    kernel: int | None
    latest: int


class StampingSocket:
    """A UDP socket bound to one local address, with the kernel's receive times.

    Raises:
        OSError: it cannot be made; from any method, that it failed or that the process closed its descriptor.
    """

    def __init__(self, local: str) -> None:
        family = socket.AF_INET6 if ":" in local else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._file = self._identity()
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)
            with suppress(OSError):  # then there are no kernel stamps
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._socket.bind((local, 0))
            self.address: Address = self._socket.getsockname()[:2]
        except BaseException:
            self._socket.close()
            raise
        self._empty_at = 0

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self._socket.fileno())
        return status.st_dev, status.st_ino

    def _check(self) -> None:
        # A sweep over all descriptors may have closed it, and then the number is another file's.
        if self._identity() != self._file:
            self._socket.detach()
            raise OSError("the process closed the descriptor of the clock probes")

    def connect(self, peer: Address) -> None:
        """From now on send to, and receive from, `peer` only."""
        self._socket.connect(peer)

    def patience(self, seconds: float) -> None:
        """How long `receive` waits."""
        whole = int(seconds)
        timeval = _TIMESPEC.pack(whole, int((seconds - whole) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def send(self, data: bytes, to: Any = None) -> None:
        """Send one datagram; without `to`, to the peer. It never waits: what the network will not take is lost."""
        self._check()
        with suppress(BlockingIOError):
            if to is None:
                self._socket.send(data, socket.MSG_DONTWAIT)
            else:
                self._socket.sendto(data, socket.MSG_DONTWAIT, to)

    def receive(self, *, wait: bool = True) -> Datagram | None:
        """The next datagram; None where there is none (or none came in time)."""
        self._check()
        looked = time.time_ns()
        try:
            # The wait is in the kernel, since a poll before it would take the interpreter's lock once more.
            data, ancillary, _, sender = self._socket.recvmsg(
                _PACKET.size + 1, socket.CMSG_SPACE(_TIMESPEC.size), 0 if wait else socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            self._empty_at = looked
            return None
        latest = time.time_ns()
        return Datagram(data, sender, self._empty_at, _kernel_stamp(ancillary), latest)

    def close(self) -> None:
        """Close it, unless the process did. It may be closed already."""
        with suppress(OSError):
            self._check()
            self._socket.close()


def _kernel_stamp(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if (level, kind, len(data)) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS, _TIMESPEC.size):
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return None


def _sleep(seconds: float) -> None:
    select.select([], [], [], seconds)  # `time.sleep` fails under libfaketime


class Mirror:
    """Tells whether this process and the kernel read the same clock, by datagrams that it sends itself.

    A reading before and one after bracket each kernel stamp. The narrowest bracket is a few microseconds wide, where a
    request's own may be milliseconds, and a small difference of the clocks would pass.
    """

    def __init__(self, local: str) -> None:
        self._socket = StampingSocket(local)
        self._socket.connect(self._socket.address)
        self._socket.patience(_PATIENCE_S)
        self._looked = 0
        self.agrees = False

    def look(self) -> bool:
        """Whether kernel stamps may be believed now; looked at once a second at most."""
        now = time.monotonic_ns()
        if not self._looked or now - self._looked > _MIRROR_EVERY_NS:
            self._looked = now
            widths = [self._width() for _ in range(_MIRRORED)]
            known = [width for width in widths if width is not None]
            self.agrees = len(known) == _MIRRORED and min(known) <= _NARROW_NS
        return self.agrees

    def _width(self) -> int | None:
        before = time.time_ns()
        self._socket.send(b"")
        got = self._socket.receive()
        if got is None or got.kernel is None or not before <= got.kernel <= got.latest:
            return None
        return got.latest - before

    def close(self) -> None:
        """Close its socket."""
        self._socket.close()


class ProbeServer:
    """Answers the other ranks' requests, on a socket of its own.

    Attributes:
        address: where it listens.
        token: what a request must carry.
        answered: requests answered.
        left: ranks that said they will not ask again.
        last: when the last request came, monotonic ns.
        kernel_stamps: whether the kernel's receive times were believed at the last request; None before the first.
    """

    def __init__(self, local: str) -> None:
        self._mirror = Mirror(local)
        try:
            self._socket = StampingSocket(local)
        except BaseException:
            self._mirror.close()
            raise
        self.address = self._socket.address
        self.token = os.urandom(TOKEN_BYTES)
        self.answered = 0
        self.left: set[int] = set()
        self.last = 0
        self.kernel_stamps: bool | None = None
        self._wrong = 0
        self._wrong_since = 0.0

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Answer until `is_over()`, which is asked after each datagram.

        Raises:
            OSError: the socket failed.
        """
        while not is_over():
            got = self._socket.receive(wait=False) or self._socket.receive()
            if got is not None:
                self._take(got)

    def _take(self, got: Datagram) -> None:
        packet = Packet.decode(got.data, self.token)
        if packet is None:
            self._drop()
        elif packet.kind == _BYE:
            self.left.add(packet.rank)
        elif packet.kind == _ASK:
            self.last = time.monotonic_ns()
            trusted = self.kernel_stamps = self._mirror.look()
            received = arrival(got.earliest, got.kernel if trusted else None, got.latest)
            answer = Packet(_ANSWER, packet.rank, packet.number, received, time.time_ns())
            with suppress(OSError):  # the network's refusals concern that rank only
                self._socket.send(answer.encode(self.token), got.sender)
            self.answered += 1

    def _drop(self) -> None:
        now = time.monotonic()
        if now - self._wrong_since > _WRONG_FORGOTTEN_S:
            self._wrong, self._wrong_since = 0, now
        self._wrong += 1
        if self._wrong >= _MOST_WRONG:
            _sleep(_WRONG_FORGOTTEN_S)  # meanwhile its queue is full, and the kernel drops the rest

    def hurry(self, rank: int) -> None:
        """Let `serve` ask often whether it is over: short waits, and a goodbye to itself as `rank`. From any thread."""
        with suppress(OSError):
            self._socket.patience(_HURRY_S)
            self._socket.send(Packet(_BYE, rank, 0).encode(self.token), self.address)

    def close(self) -> None:
        """Close the sockets: nobody listens any more."""
        self._socket.close()
        self._mirror.close()


@dataclass(frozen=True, slots=True)
class Exchange:
    """Four stamps in Unix ns: `sent` and `received` of the rank that asked, the others of the one that answered."""

    sent: int
    peer_received: int
    peer_sent: int
    received: int


class ProbeClient:
    """Asks the reference rank, on a socket of its own that hears nobody else.

    Attributes:
        lost: requests that were not answered in time.
        kernel_stamps: whether the kernel's receive times were believed at the last series; None before the first.
    """

    def __init__(self, local: str, peer: Address, token: bytes, rank: int) -> None:
        self._mirror = Mirror(local)
        try:
            self._socket = StampingSocket(local)
        except BaseException:
            self._mirror.close()
            raise
        self._socket.connect(peer)
        self._socket.patience(_PATIENCE_S)
        self._token = token
        self._rank = rank
        self._number = 0
        self.lost = 0
        self.kernel_stamps: bool | None = None

    def series(self, count: int, pause_s: float, is_over: Callable[[], bool] = lambda: False) -> list[Exchange]:
        """`count` exchanges with pauses between them; fewer once it `is_over`, or several requests in a row are lost.

        Raises:
            OSError: the socket failed; ConnectionRefusedError: nobody listens at the peer's address any more.
        """
        trusted = self.kernel_stamps = self._mirror.look()
        found: list[Exchange] = []
        lost = 0
        for _ in range(count):
            exchange = self._exchange(trusted)
            if exchange is not None:
                found.append(exchange)
            lost = 0 if exchange is not None else lost + 1
            self.lost += exchange is None
            if lost == _MOST_LOST or is_over():
                break
            _sleep(pause_s)
        return found

    def _exchange(self, trusted: bool) -> Exchange | None:
        self._number += 1
        request = Packet(_ASK, self._rank, self._number).encode(self._token)
        sent = time.time_ns()
        self._socket.send(request)
        for _ in range(_MOST_WRONG):  # late answers to earlier requests, and what is none
            got = self._socket.receive()
            if got is None:
                return None
            answer = Packet.decode(got.data, self._token)
            if answer is not None and (answer.kind, answer.number) == (_ANSWER, self._number):
                received = arrival(sent, got.kernel if trusted else None, got.latest)
                ordered = sent <= received and answer.received <= answer.sent  # else a clock was set meanwhile
                return Exchange(sent, answer.received, answer.sent, received) if ordered else None
        return None

    def leave(self) -> None:
        """Tell the peer that this rank will not ask again."""
        with suppress(OSError):
            self._socket.send(Packet(_BYE, self._rank, 0).encode(self._token))

    def close(self) -> None:
        """Close the sockets."""
        self._socket.close()
        self._mirror.close()
