"""Clock probes: each rank asks rank 0 for the time, now and then, and writes down what it heard.

A thread of its own does it, over a socket of its own. Nothing is computed here: the samples go to a stream, and the
report finds offsets, drift and bounds. Where the ranks cannot reach each other the probes are off, and the facts say
why.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from distprof.capture.exchanges import Exchange, ProbeClient, ProbeServer
from distprof.capture.meeting import Meeting, NoMeeting
from distprof.run.directory import RankFiles
from distprof.run.files import Stream

SCHEMA = "distprof.clock.v1"
REFERENCE = 0
# One series tells the offset at one time: of so many exchanges some meet no obstacle.
_SERIES, _PAUSE_S = 16, 0.01
_LAST_SERIES, _LAST_PAUSE_S = 8, 0.002
# Between series, doubled each time: clocks drift slowly, and a killed rank shall leave something.
_FIRST_GAP_S, _LONGEST_GAP_S = 2.0, 30.0
_LEAST_GAP_S = 2.0
# What rank 0 is asked at most, by all others together: requests per second in a burst, and in the long run.
_BURST_RATE, _STEADY_RATE = 500, 50
_FRESH_S = 1.0
_GIVES_UP_AFTER = 3
# The end of the process: others may still want to ask rank 0.
_QUIET_NS = 300_000_000
_LINGER_NS = 2_000_000_000
_WAIT_S = 2.5
_EDGE, _END = "edge", "end"


class Probes:
    """The probes of this rank; all methods may be called from any thread, return at once but for `wait`, and raise
    nothing.

    Args:
        files: the rank's files.
        header: of the stream, beside its schema.
        wanted: False: they stay off.
        note: called with what is known of them, for the rank's facts, whenever it changed.
        problem: called with what nobody foresaw.
    """

    def __init__(
        self,
        files: RankFiles,
        header: dict[str, Any],
        wanted: bool,
        note: Callable[[dict[str, Any]], None],
        problem: Callable[[str, Exception], None],
    ) -> None:
        self._files = files
        self._header = {"schema": SCHEMA, **header}
        self._note = note
        self._problem = problem
        self._wishes: SimpleQueue[str] = SimpleQueue()  # reentrant: a signal handler may end the process at any place
        self._done: SimpleQueue[None] = SimpleQueue()
        self._started = not wanted
        self._running = False
        self._ended_ns = 0
        self._rank = self._world_size = 0
        self._store: Any = None
        self._socket: ProbeServer | ProbeClient | None = None
        self._facts: dict[str, Any] = {
            "status": "off",
            "reason": "the script made no process group" if wanted else "--no-probes was given",
            "reference": REFERENCE,
            "exchanges": 0,
            "lost": 0,
            "kernel_stamps": None,
            "cpu_s": None,
        }
        self._tell()

    def _tell(self, **facts: Any) -> None:
        self._facts = {**self._facts, **facts}
        self._note(self._facts)

    def start(self, store: Any, rank: int, world_size: int) -> None:
        """The default process group is there: begin, the first time.

        Args:
            store: its store; None where it has none.
            rank: this one's number in it, which must be that of the recording.
            world_size: its size.
        """
        if self._started:
            return
        self._started = True
        if world_size == 1:
            self._tell(reason="a world of one rank has nobody to ask")
        elif rank != self._header["rank"]:
            self._tell(reason="the process group gives this rank another number than the recording")
        elif store is None:
            self._tell(reason="the process group has no store to meet in")
        else:
            self._rank, self._world_size = rank, world_size
            self._store = store
            self._running = True
            # Not one of `threading.enumerate()`, as the writer.
            _thread.start_new_thread(self._run, ())

    def sample(self) -> None:
        """Something happened at whose time the clocks are wanted."""
        if self._running and self._rank != REFERENCE and not self._is_ending():
            self._wishes.put(_EDGE)

    def end(self) -> None:
        """The process is about to end: take the last samples, and close."""
        self._started = True
        if self._running and not self._is_ending():
            self._ended_ns = time.monotonic_ns()
            self._wishes.put(_END)
            if isinstance(self._socket, ProbeServer):
                self._socket.hurry(self._rank)

    def wait(self) -> None:
        """Wait, shortly, until that is done."""
        if self._running:
            try:
                self._done.get(timeout=_WAIT_S)
            except Empty:
                self._tell(reason=self._facts["reason"] or "they did not come to their end")

    def disown(self) -> None:
        """This is a fork, without their thread: it shall not hold the socket open."""
        self._started, self._running = True, False
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        store, self._store = self._store, None
        try:
            meeting = Meeting(store, self._rank, self._world_size, self._pause)
            del store  # it ends with the process group, as it would without us
            if self._rank == REFERENCE:
                self._answer(meeting)
            else:
                self._ask(meeting)
        except NoMeeting as error:
            self._tell(reason=str(error))
        except (OSError, RuntimeError) as error:  # the store raises RuntimeErrors
            self._tell(reason=f"{type(error).__name__}: {error}")
        except Exception as error:
            self._tell(reason=f"{type(error).__name__}: {error}")
            self._problem("probing the clocks", error)
        finally:
            if self._socket is not None:
                self._socket.close()
            self._tell(status="on" if self._facts["exchanges"] else "off", cpu_s=time.thread_time())
            self._running = False
            self._done.put(None)

    def _pause(self, seconds: float) -> bool:
        """Wait for the end of the process, at most so long; whether it came."""
        try:
            return self._wishes.get(timeout=seconds) == _END
        except Empty:
            return False

    def _is_ending(self) -> bool:
        return self._ended_ns != 0

    def _answer(self, meeting: Meeting) -> None:
        try:
            server = self._socket = ProbeServer(meeting.interface())
        except BaseException:
            meeting.offer(None)
            raise
        meeting.offer(server.address, server.token)
        meeting.close()
        self._tell(reason="nobody has asked yet")
        others = self._world_size - 1
        asked = False

        def is_over() -> bool:
            nonlocal asked
            if server.answered and not asked:
                asked = True
                self._tell(status="on", reason=None, kernel_stamps=server.kernel_stamps)
            if not self._is_ending():
                return False
            now = time.monotonic_ns()
            quiet = now - max(self._ended_ns, server.last) > _QUIET_NS
            return quiet or now - self._ended_ns > _LINGER_NS or len(server.left - {self._rank}) >= others

        try:
            server.serve(is_over)
        finally:
            self._tell(exchanges=server.answered, kernel_stamps=server.kernel_stamps)

    def _ask(self, meeting: Meeting) -> None:
        local, peer, token = meeting.find()
        meeting.close()
        client = self._socket = ProbeClient(local, peer, token, self._rank)
        self._tell(reason="rank 0 has not answered yet")
        stream = Stream(self._files.clock, self._header)
        stagger = self._rank * _SERIES / _BURST_RATE
        longest = max(_LONGEST_GAP_S, self._world_size * _SERIES / _STEADY_RATE)
        gap = _FIRST_GAP_S
        failed = 0
        last = -_LEAST_GAP_S
        due = time.monotonic() + stagger
        while True:
            try:
                wish = self._wishes.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                wish = None
            if wish == _END:
                break
            if wish == _EDGE:
                due = min(due, max(time.monotonic() + stagger, last + _LEAST_GAP_S))
                continue
            failed = 0 if self._series(client, stream, _SERIES, _PAUSE_S, self._is_ending) else failed + 1
            if failed == _GIVES_UP_AFTER:
                raise NoMeeting(f"rank 0 did not answer at {peer[0]}, UDP port {peer[1]}")
            last = time.monotonic()
            due = last + gap
            gap = min(2 * gap, longest)
        if not failed and time.monotonic() - last > _FRESH_S:
            self._series(client, stream, _LAST_SERIES, _LAST_PAUSE_S)
        client.leave()
        stream.close()

    def _series(
        self,
        client: ProbeClient,
        stream: Stream,
        count: int,
        pause_s: float,
        is_over: Callable[[], bool] = lambda: False,
    ) -> bool:
        try:
            found = client.series(count, pause_s, is_over)
        except ConnectionRefusedError:  # it is gone, or not there yet
            return False
        if found:
            stream.append(_columns(found))
        self._tell(
            exchanges=self._facts["exchanges"] + len(found), lost=client.lost, kernel_stamps=client.kernel_stamps
        )
        if found:
            self._tell(status="on", reason=None)
        return bool(found)


def _columns(exchanges: list[Exchange]) -> dict[str, list[int]]:
    return {
        "peer": [REFERENCE] * len(exchanges),
        "sent": [exchange.sent for exchange in exchanges],
        "peer_received": [exchange.peer_received for exchange in exchanges],
        "peer_sent": [exchange.peer_sent for exchange in exchanges],
        "received": [exchange.received for exchange in exchanges],
    }
