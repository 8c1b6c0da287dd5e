"""Attempts: numbered once each, whoever comes first, on however many hosts."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore, PrefixStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo, registry

from distprof.launcher.rendezvous import agreed_attempts
from distprof.run.attempts import ATTEMPT_VARIABLE, attempt_of, claim_attempt, key_of, read_key
from distprof.run.directory import RunDirectory
from distprof.run.identity import IdentityError


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def claim(job: tuple[Path, str]) -> int:
    return claim_attempt(RunDirectory(job[0]), job[1])


def test_all_who_come_at_once_get_one_number_for_each_key(directory: RunDirectory) -> None:
    keys = ["first", "second", "third", "second", "first", "third"] * 4
    with multiprocessing.get_context("fork").Pool(8) as pool:
        numbers = pool.map(claim, [(directory.path, key) for key in keys], chunksize=1)
    by_key = {key: {number for each, number in zip(keys, numbers, strict=True) if each == key} for key in keys}
    assert sorted(number for found in by_key.values() for number in found) == [0, 1, 2]
    assert directory.attempts() == [0, 1, 2]
    assert {key: {number} for number in range(3) if (key := read_key(directory, number))} == by_key
    assert [path.name for path in directory.path.iterdir() if path.name.startswith(".")] == []


def test_a_number_known_elsewhere_is_kept_unless_it_is_taken(directory: RunDirectory) -> None:
    assert claim_attempt(directory, "a", preferred=3) == 3
    assert claim_attempt(directory, "a", preferred=5) == 3
    assert claim_attempt(directory, "b", preferred=3) == 4


def test_a_folder_without_a_key_is_nobodys(directory: RunDirectory) -> None:
    (directory.attempt(0)).mkdir()
    (directory.attempt(0) / "rank00000.json").touch()
    assert claim_attempt(directory, "a") == 1
    directory.rendezvous(1).write_text('{"key": 7}')
    assert read_key(directory, 1) is None
    assert claim_attempt(directory, "a") == 2


def test_without_an_agent_of_ours_the_counts_of_launcher_and_scheduler_tell_attempts_apart(
    directory: RunDirectory,
) -> None:
    torchrun = [{"TORCHELASTIC_RESTART_COUNT": str(count)} for count in (0, 1)]
    requeued = {"TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "1"}
    numbers = [attempt_of(directory, environment) for environment in (*torchrun, requeued, torchrun[0], {})]
    assert numbers == [0, 1, 2, 0, 0]
    with pytest.raises(IdentityError, match="SLURM_RESTART_COUNT='x' is not a number"):
        key_of({"SLURM_RESTART_COUNT": "x"})


def test_what_the_agents_agreed_on_comes_first(directory: RunDirectory) -> None:
    assert attempt_of(directory, {ATTEMPT_VARIABLE: "4", "SLURM_RESTART_COUNT": "1"}) == 4
    assert directory.attempts() == [4]
    with pytest.raises(IdentityError, match=f"{ATTEMPT_VARIABLE}='no'"):
        attempt_of(directory, {ATTEMPT_VARIABLE: "no"})


class Handler:
    """A rendezvous handler as torch's are: a static one keeps its store, another one has a new one for each round."""

    def __init__(self, store: HashStore, rank: int, backend: str) -> None:
        self.store, self.rank, self.backend, self.round = store, rank, backend, 0

    def get_backend(self) -> str:
        return self.backend

    def next_rendezvous(self) -> RendezvousInfo:
        prefix = "" if self.backend == "static" else f"round{self.round}"
        self.round += 1
        return RendezvousInfo(PrefixStore(prefix, self.store), self.rank, 2, RendezvousStoreInfo("", 0))


@pytest.fixture
def environment() -> Iterator[None]:
    yield
    os.environ.pop(ATTEMPT_VARIABLE, None)


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_agents_agree_at_each_rendezvous_on_a_shared_disk_and_on_disks_of_their_own(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: None
) -> None:
    store = HashStore()
    fakes = {rank: Handler(store, rank, backend) for rank in (0, 1)}
    monkeypatch.setattr(registry, "get_rendezvous_handler", lambda rank: fakes[rank])
    patched = registry.get_rendezvous_handler
    shared, own = RunDirectory(tmp_path / "shared"), RunDirectory(tmp_path / "own")
    for directory in (shared, own):
        directory.path.mkdir()
    claim_attempt(shared, "of an earlier job")
    found: list[list[dict[str, int]]] = [[], []]
    handlers: list[Any] = []
    for rank, directories in enumerate(([shared], [shared, own])):
        with agreed_attempts(directories, found[rank].append):
            handlers.append(registry.get_rendezvous_handler(rank))  # type: ignore[arg-type]
    assert registry.get_rendezvous_handler is patched
    for _ in range(2):
        for rank in (0, 1):
            handlers[rank].next_rendezvous()
            assert os.environ[ATTEMPT_VARIABLE] == str(found[rank][-1]["attempt"])
    assert [[row["attempt"] for row in rows] for rows in found] == [[1, 2], [1, 2]]
    assert [[row["node_rank"] for row in rows] for rows in found] == [[0, 0], [1, 1]]
    keys = [[read_key(directory, number) for number in (1, 2)] for directory in (shared, own)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 2
    assert own.attempts() == [1, 2]


def test_a_rendezvous_without_an_answer_from_agent_0_does_not_hinder_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], environment: None
) -> None:
    class Deaf(HashStore):
        def wait(self, *_: Any) -> None:
            raise RuntimeError("wait timeout")

    class Alone(Handler):
        def next_rendezvous(self) -> RendezvousInfo:
            return RendezvousInfo(self.store, 1, 2, RendezvousStoreInfo("", 0))

    monkeypatch.setattr(registry, "get_rendezvous_handler", lambda _: Alone(Deaf(), 1, "c10d"))
    monkeypatch.setenv(ATTEMPT_VARIABLE, "7")
    with agreed_attempts([RunDirectory(tmp_path)], lambda _: pytest.fail("nothing was agreed on")):
        handler: Any = registry.get_rendezvous_handler(None)  # type: ignore[arg-type]
        assert handler.next_rendezvous().rank == 1
        assert ATTEMPT_VARIABLE not in os.environ
    assert "no attempt was agreed on (RuntimeError: wait timeout)" in capsys.readouterr().err
