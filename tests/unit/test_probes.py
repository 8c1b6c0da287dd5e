"""The clock probes' sockets and their life: whom they hear, what they believe, and that they end."""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from distprof.capture import exchanges, meeting, probes
from distprof.capture.exchanges import Mirror, Packet, ProbeClient, ProbeServer, StampingSocket, arrival
from distprof.capture.probes import Probes
from distprof.cli.capture_options import add_capture_options, capture_config
from distprof.run.config import CaptureConfig
from distprof.run.directory import RankFiles

HOME = "127.0.0.1"
TOKEN = bytes(range(16))


@contextmanager
def serving() -> Iterator[ProbeServer]:
    """A server that answers until the block ends."""
    server = ProbeServer(HOME)
    over = threading.Event()
    thread = threading.Thread(target=server.serve, args=(over.is_set,))
    thread.start()
    yield server
    over.set()
    server.hurry(0)
    thread.join(timeout=10)
    assert not thread.is_alive()
    server.close()


@contextmanager
def asking(server: ProbeServer, token: bytes | None = None) -> Iterator[ProbeClient]:
    client = ProbeClient(HOME, server.address, token or server.token, rank=1)
    yield client
    client.close()


def port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        try:
            other.bind((HOME, port))
        except OSError:
            return False
    return True


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_four_stamps_are_in_the_order_of_what_happened() -> None:
    with serving() as server, asking(server) as client:
        found = client.series(10, 0.0)
    assert len(found) == 10
    for exchange in found:  # one clock here
        assert exchange.sent <= exchange.peer_received <= exchange.peer_sent <= exchange.received
    assert server.answered == 10
    assert client.lost == 0


@given(st.binary(max_size=60))
def test_bytes_that_do_not_carry_the_token_are_none_of_ours(data: bytes) -> None:
    assert Packet.decode(data, TOKEN) is None


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1))
def test_a_packet_is_read_as_it_was_written(rank: int, number: int, moment: int) -> None:
    packet = Packet(b"!", rank, number, moment, moment)
    assert Packet.decode(packet.encode(TOKEN), TOKEN) == packet
    assert Packet.decode(packet.encode(TOKEN), TOKEN[::-1]) is None


def test_what_carries_no_token_gets_no_answer() -> None:
    with serving() as server, asking(server) as client:
        stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        stranger.settimeout(0.3)
        request = Packet(b"?", 1, 1)
        for data in (
            b"",
            b"x",
            os.urandom(41),
            os.urandom(9000),
            request.encode(TOKEN),
            request.encode(server.token)[:-1],
        ):
            stranger.sendto(data, server.address)
        with pytest.raises(TimeoutError):
            stranger.recv(100)
        assert server.answered == 0
        assert client.series(3, 0.0)
        stranger.sendto(request.encode(server.token), server.address)
        assert len(stranger.recv(100)) == len(request.encode(TOKEN))  # no longer than the request
        stranger.close()


def test_a_client_with_another_token_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "_PATIENCE_S", 0.05)
    with serving() as server, asking(server, TOKEN) as client:
        assert client.series(10, 0.0) == []
    assert client.lost == 3  # it does not go on for long


def test_a_client_hears_its_peer_only_and_only_the_answer_to_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "_PATIENCE_S", 0.3)
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.bind((HOME, 0))
    client = ProbeClient(HOME, peer.getsockname(), TOKEN, rank=1)
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def answer() -> None:
        data, sender = peer.recvfrom(100)
        request = Packet.decode(data, TOKEN)
        assert request is not None
        good = Packet(b"!", 1, request.number, 5, 6)
        stranger.sendto(Packet(b"!", 1, request.number, 1, 2).encode(TOKEN), sender)
        late = Packet(b"!", 1, request.number - 1, 1, 2)
        for wrong in (b"", os.urandom(41), late.encode(TOKEN), good.encode(TOKEN[::-1]), data):
            peer.sendto(wrong, sender)
        peer.sendto(good.encode(TOKEN), sender)

    thread = threading.Thread(target=answer)
    thread.start()
    (exchange,) = client.series(1, 0.0)
    thread.join()
    assert (exchange.peer_received, exchange.peer_sent) == (5, 6)
    for each in (peer, stranger, client):
        each.close()


def test_a_flood_is_left_to_the_kernel_and_asking_works_again_after_it() -> None:
    reads = 0

    class Counting(StampingSocket):
        def receive(self, *, wait: bool = True) -> Any:
            nonlocal reads
            reads += 1
            return super().receive(wait=wait)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchanges, "StampingSocket", Counting)
        with serving() as server:
            stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sent, end = 0, time.monotonic() + 2.5
            while time.monotonic() < end:
                stranger.sendto(b"x" * 41, server.address)
                sent += 1
            stranger.close()
            assert sent > 10_000
            assert reads < 1_500
            with asking(server) as client:
                until(lambda: client.series(1, 0.0))


def test_the_kernel_is_believed_only_between_the_readings_around_it() -> None:
    assert arrival(10, 15, 20) == 15
    assert arrival(10, 9, 20) == 20
    assert arrival(10, 21, 20) == 20
    assert arrival(10, None, 20) == 20


@pytest.mark.parametrize("skew_ns", [0, 1_000_000, -1_000_000, 2_500_000_000])
def test_a_clock_that_the_kernel_does_not_share_is_noticed(skew_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    true = time.time_ns
    monkeypatch.setattr(exchanges.time, "time_ns", lambda: true() + skew_ns)
    mirror = Mirror(HOME)
    assert mirror.look() is (skew_ns == 0)
    mirror.close()


@pytest.mark.parametrize("skewed", ["server", "client"])
def test_offsets_are_right_where_one_side_sees_another_clock_than_the_kernel(skewed: str) -> None:
    skew = 1_000_000_000

    class Clock:
        """`time`, ahead for the threads of one side."""

        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

        def time_ns(self) -> int:
            on_server = threading.current_thread() is not threading.main_thread()
            return time.time_ns() + (skew if on_server == (skewed == "server") else 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchanges, "time", Clock())
        with serving() as server, asking(server) as client:
            found = client.series(20, 0.001)
    assert (server.kernel_stamps, client.kernel_stamps) == (skewed != "server", skewed != "client")
    truth = skew if skewed == "server" else -skew
    for exchange in found:  # causality holds for each
        assert exchange.peer_received - exchange.sent >= truth >= exchange.peer_sent - exchange.received


def test_a_socket_that_the_process_closed_is_not_touched_again() -> None:
    ours = StampingSocket(HOME)
    number = ours._socket.fileno()
    os.close(number)
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    assert other.fileno() == number
    with pytest.raises(OSError, match="closed the descriptor"):
        ours.receive(wait=False)
    ours.close()
    assert os.fstat(number)  # still the other's
    other.close()


class Rank:
    """One rank's probes, with what they noted."""

    def __init__(self, folder: Path, rank: int, *, wanted: bool = True) -> None:
        self.facts: dict[str, Any] = {}
        self.problems: list[Exception] = []
        self.files = RankFiles(folder, rank)
        header = {"rank": rank, "pid": os.getpid()}
        self.probes = Probes(
            self.files, header, wanted, self.note, problem=lambda _, error: self.problems.append(error)
        )

    def note(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def samples(self) -> list[dict[str, list[int]]]:
        _, *blocks = (json.loads(line) for line in self.files.clock.read_text().splitlines())
        return blocks


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    return dist.PrefixStore("default_pg", dist.TCPStore(HOME, 0, is_master=True, wait_for_workers=False))


@pytest.fixture
def pair(tmp_path: Path, store: Any) -> Iterator[tuple[Rank, Rank]]:
    """Ranks 0 and 1 of a job, started; ended with the test."""
    ranks = (Rank(tmp_path, 0), Rank(tmp_path, 1))
    for number, rank in enumerate(ranks):
        rank.probes.start(store, number, 2)
    yield ranks
    for rank in ranks:
        rank.probes.end()
        rank.probes.wait()
        assert rank.problems == []


def test_samples_are_written_from_start_to_end_and_then_nobody_listens(pair: tuple[Rank, Rank]) -> None:
    reference, rank = pair
    until(lambda: rank.facts["exchanges"])
    server = reference.probes._socket
    assert isinstance(server, ProbeServer)
    assert server.address[0] == HOME
    assert not port_is_free(server.address[1])
    time.sleep(1.1)  # else the last samples would be as good
    for each in pair:
        each.probes.end()
    for each in reversed(pair):
        each.probes.wait()
        assert not each.probes._running
    assert port_is_free(server.address[1])
    blocks = rank.samples()
    assert len(blocks) == 2
    for block in blocks:
        assert list(block) == ["peer", "sent", "peer_received", "peer_sent", "received"]
        assert {len(column) for column in block.values()} == {len(block["sent"])}
        assert set(block["peer"]) == {0}
    assert json.loads(rank.files.clock.read_text().splitlines()[0])["schema"] == "distprof.clock.v1"
    assert not reference.files.clock.exists()
    count = sum(len(block["sent"]) for block in blocks)
    assert (rank.facts["status"], rank.facts["reason"], rank.facts["exchanges"]) == ("on", None, count)
    assert (reference.facts["status"], reference.facts["exchanges"]) == ("on", count)


def test_ranks_that_no_launcher_counted_meet_where_the_rendezvous_is(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    ranks = (Rank(tmp_path, 0), Rank(tmp_path, 1))
    for number, each in enumerate(ranks):
        each.probes.start(store, number, 2)
    until(lambda: ranks[1].facts["exchanges"])
    for each in ranks:
        each.probes.end()
        each.probes.wait()


def test_no_thread_is_seen_by_the_script(pair: tuple[Rank, Rank]) -> None:
    until(lambda: pair[1].facts["exchanges"])
    assert threading.enumerate() == [threading.main_thread()]


def test_an_edge_is_sampled_soon_but_never_twice_within_a_moment(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_FIRST_GAP_S", 60.0)
    monkeypatch.setattr(probes, "_LEAST_GAP_S", 0.5)
    ranks = (Rank(tmp_path, 0), Rank(tmp_path, 1))
    for number, each in enumerate(ranks):
        each.probes.start(store, number, 2)
    rank = ranks[1]
    until(lambda: rank.facts["exchanges"])
    first = rank.facts["exchanges"]
    for _ in range(100):
        rank.probes.sample()
    until(lambda: rank.facts["exchanges"] == 2 * first)
    time.sleep(1)
    assert rank.facts["exchanges"] == 2 * first
    for each in ranks:
        each.probes.end()
        each.probes.wait()


def test_a_fork_does_not_hold_the_socket_and_does_not_answer(pair: tuple[Rank, Rank]) -> None:
    reference, rank = pair
    until(lambda: rank.facts["exchanges"])
    server = reference.probes._socket
    assert isinstance(server, ProbeServer)
    ended_read, ended_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ended_write)
        reference.probes.disown()
        rank.probes.disown()
        reference.probes.end()
        reference.probes.wait()
        os.read(ended_read, 1)  # lives on
        os._exit(0)
    os.close(ended_read)
    with asking(server) as client:
        assert client.series(3, 0.0)  # the parent still answers
    for each in pair:
        each.probes.end()
        each.probes.wait()
    free = port_is_free(server.address[1])
    os.close(ended_write)
    assert os.waitpid(child, 0)[1] == 0
    assert free


def test_rank_0_that_died_holds_nobody_up(tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_FIRST_GAP_S", 0.01)
    dead = ProbeServer(HOME)
    dead.close()
    found = meeting.Meeting(store, 0, 2, lambda _: False)
    found.offer(dead.address, dead.token)
    rank = Rank(tmp_path, 1)
    rank.probes.start(store, 1, 2)
    until(lambda: not rank.probes._running)
    assert rank.facts["status"] == "off"
    assert rank.facts["reason"] == f"rank 0 did not answer at {HOME}, UDP port {dead.address[1]}"
    rank.probes.end()
    rank.probes.wait()
    assert rank.problems == []


def test_a_peer_that_never_answers_ends_in_time_and_is_told(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_FIRST_GAP_S", 0.01)
    monkeypatch.setattr(exchanges, "_PATIENCE_S", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind((HOME, 0))
        meeting.Meeting(store, 0, 2, lambda _: False).offer(mute.getsockname(), TOKEN)
        rank = Rank(tmp_path, 1)
        rank.probes.start(store, 1, 2)
        until(lambda: not rank.probes._running)
    assert rank.facts["status"] == "off"
    assert "did not answer" in rank.facts["reason"]
    assert rank.facts["lost"] == 9


def test_a_rank_0_that_offers_nothing_ends_with_the_training(tmp_path: Path, store: Any) -> None:
    rank = Rank(tmp_path, 1)
    rank.probes.start(store, 1, 2)
    time.sleep(0.2)
    rank.probes.end()
    rank.probes.wait()
    assert not rank.probes._running
    assert rank.facts["reason"] == "the training ended before the ranks had found each other"


def test_rank_0_that_cannot_offer_says_so_to_the_others(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(local: str) -> ProbeServer:
        raise PermissionError("no sockets here")

    monkeypatch.setattr(probes, "ProbeServer", refuse)
    ranks = [Rank(tmp_path, 0), Rank(tmp_path, 1)]
    for number, rank in enumerate(ranks):
        rank.probes.start(store, number, 2)
    until(lambda: not any(rank.probes._running for rank in ranks))
    assert ranks[0].facts["reason"] == "PermissionError: no sockets here"
    assert ranks[1].facts["reason"] == "rank 0 could not offer clock probes"
    assert ranks[0].problems == ranks[1].problems == []


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        ({"world_size": 1}, "a world of one rank"),
        ({"rank": 1}, "another number than the recording"),
        ({"store": None}, "no store"),
        ({"store": dist.HashStore()}, "HashStore, which tells no host"),
    ],
)
def test_where_the_ranks_cannot_meet_the_probes_are_off_and_say_why(
    world: dict[str, Any], reason: str, tmp_path: Path, store: Any
) -> None:
    rank = Rank(tmp_path, 0)
    assert rank.facts["reason"] == "the script made no process group"
    rank.probes.start(**{"store": store, "rank": 0, "world_size": 2, **world})
    until(lambda: not rank.probes._running)
    assert rank.facts["status"] == "off"
    assert reason in rank.facts["reason"]
    rank.probes.end()
    rank.probes.wait()
    assert rank.problems == []
    assert not rank.files.clock.exists()


def test_an_option_switches_them_off() -> None:
    parser = argparse.ArgumentParser()
    add_capture_options(parser.add_argument_group())
    for words, wanted in (([], True), (["--no-probes"], False)):
        config = capture_config(parser.parse_args(words), Path("run"), None)
        assert config.probes is wanted
        assert CaptureConfig.from_environment(config.to_environment()) == config


def test_probes_that_are_not_wanted_do_nothing(tmp_path: Path, store: Any) -> None:
    rank = Rank(tmp_path, 0, wanted=False)
    rank.probes.start(store, 0, 2)
    rank.probes.sample()
    rank.probes.end()
    rank.probes.wait()
    assert (rank.facts["status"], rank.facts["reason"]) == ("off", "--no-probes was given")
    assert not store.check(["distprof/clock/reference"])


def test_the_stores_own_server_is_not_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    base = dist.TCPStore(HOME, 0, is_master=True, wait_for_workers=False)
    port = base.port
    rank = Rank(tmp_path, 0)
    rank.probes.start(dist.PrefixStore("default_pg", base), 0, 2)
    until(lambda: rank.facts["reason"] == "nobody has asked yet")
    del base
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOME, port), timeout=1).close()
    rank.probes.end()
    rank.probes.wait()


@pytest.mark.parametrize("local", [HOME, "127.0.1.1"])
def test_a_host_that_calls_itself_loopback_is_known_by_the_way_to_the_last_rank(
    local: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    ways = {"192.0.2.7": "192.0.2.1"}
    monkeypatch.setattr(meeting, "_local_address", lambda host, port: ways.get(host, local))
    store.set("distprof/clock/last", json.dumps({"address": ["192.0.2.7", 1]}))
    assert meeting.Meeting(store, 0, 2, lambda _: False).interface() == "192.0.2.1"
