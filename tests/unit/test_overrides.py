"""`--set`: settings are read, applied where the script constructs its loaders, and told; what met nothing is an error.

Loaders and models are constructed in this process, from classes that are copies of torch's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from distprof.analyze.settings import setting_rows
from distprof.capture import settings as module
from distprof.capture.settings import Overrides
from distprof.cli import env, launch
from distprof.pipeline import build
from distprof.result import Finding, SettingRow
from distprof.run.config import OWNER_VARIABLE, ConfigError
from distprof.run.settings import parse_setting, parse_settings, written
from tests.ranks import capture
from tests.unit.tables import tables

DATA = TensorDataset(torch.arange(8.0))
HERE = Path(__file__).name


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_settings_are_read_and_written() -> None:
    texts = ["loader.num_workers=4", "loader.pin_memory=true", "ddp.bucket_cap_mb=0.5", "loader.only=train.py:12"]
    read = parse_settings(texts)
    assert read == {
        "loader.num_workers": 4,
        "loader.pin_memory": True,
        "ddp.bucket_cap_mb": 0.5,
        "loader.only": "train.py:12",
    }
    assert written(read) == texts
    assert parse_settings(["loader.num_workers=1", "loader.num_workers=2"]) == {"loader.num_workers": 2}
    assert parse_setting("ddp.static_graph=No") == ("ddp.static_graph", False)
    assert parse_setting("loader.only=1") == ("loader.only", 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("loader.num_workers", "is not SETTING=VALUE"),
        ("loader.workers=3", "did you mean loader.num_workers"),
        ("xyz=3", "there are loader.num_workers"),
        ("loader.num_workers=-1", "a whole number of at least 0"),
        ("loader.num_workers=²", "a whole number"),
        ("loader.prefetch_factor=0", "a whole number of at least 1"),
        ("loader.pin_memory=maybe", "it is true or false"),
        ("ddp.bucket_cap_mb=nan", "a number above 0"),
        ("ddp.bucket_cap_mb=0", "a number above 0"),
        ("loader.only=train.py", "FILE:LINE"),
    ],
)
def test_what_is_no_setting_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_setting(text)


def test_choosing_a_loader_and_setting_nothing_on_it_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no setting of a loader"):
        parse_settings(["loader.only=0", "ddp.static_graph=true"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "loader.workers=4"], "did you mean loader.num_workers"),
        (["--set", "loader.only=0"], "no setting of a loader is given"),
        (["--stop-after", "0"], "not a whole number above 0"),
        (["--seed", "x"], "not a whole number"),
    ],
)
def test_the_commands_refuse_wrong_options_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    for main, more in ((env.main, []), (launch.main, ["train.py"])):
        with pytest.raises(SystemExit) as end:
            main(["--run-dir", str(tmp_path / "run"), *words, *more])
        assert end.value.code == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture
def loader_class(monkeypatch: pytest.MonkeyPatch) -> type[DataLoader[Any]]:
    """A class that is constructed as torch's is, and may be wrapped."""
    monkeypatch.delenv(OWNER_VARIABLE, raising=False)
    copy = type("DataLoader", (DataLoader,), {"__init__": DataLoader.__init__})
    monkeypatch.setattr(module, "DataLoader", copy)
    return copy


def overridden(*settings: str) -> Overrides:
    overrides = Overrides(parse_settings(settings))
    overrides.install()
    return overrides


def test_settings_reach_loaders_however_they_are_made(loader_class: type[DataLoader[Any]]) -> None:
    class Mine(loader_class):  # type: ignore[misc, valid-type]
        def __init__(self, size: int) -> None:
            super().__init__(DATA, size, False, None, None, 2)

    overrides = overridden("loader.num_workers=1", "loader.prefetch_factor=5")
    made = [loader_class(DATA, 4), loader_class(DATA, num_workers=3, batch_size=4), Mine(4), loader_class(Stream())]
    assert [loader.num_workers for loader in made] == [1] * 4
    assert [loader.prefetch_factor for loader in made] == [5] * 4
    assert [loader.batch_size for loader in made] == [4, 4, 4, 1]
    rows = [row for row in overrides.facts["met"] if row["setting"] == "loader.num_workers"]
    assert [row["had"] for row in rows] == [0, 3, 2, 0]
    assert [row["took"] for row in rows] == [1] * 4
    assert [row["target"] for row in rows] == ["DataLoader", "DataLoader", "Mine", "DataLoader"]
    assert {Path(row["place"].rpartition(":")[0]).name for row in rows} == {HERE}
    assert len({row["place"] for row in rows}) == 1  # one line makes all four
    assert overrides.facts["unmet"] == {}


def test_what_needs_workers_goes_with_them(loader_class: type[DataLoader[Any]]) -> None:
    overridden("loader.num_workers=0")
    loader = loader_class(
        DATA,
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,
        timeout=5,
        multiprocessing_context="spawn",
    )
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers, loader.timeout) == (
        0,
        None,
        False,
        0,
    )
    assert len(list(loader)) == 8


def test_what_needs_workers_and_finds_none_is_unmet(loader_class: type[DataLoader[Any]]) -> None:
    overrides = overridden("loader.prefetch_factor=4", "loader.persistent_workers=true", "loader.pin_memory=true")
    loader = loader_class(DATA)
    assert (loader.prefetch_factor, loader.persistent_workers, loader.pin_memory) == (None, False, True)
    reason = "it needs workers, and the loader has none"
    assert overrides.facts["unmet"] == {"loader.prefetch_factor": reason, "loader.persistent_workers": reason}
    loader_class(DATA, num_workers=1)  # another loader has some
    assert overrides.facts["unmet"] == {}


def test_what_has_another_effect_than_it_seems_is_told(loader_class: type[DataLoader[Any]]) -> None:
    overrides = overridden("loader.num_workers=2")
    loader_class(DATA)
    loader_class(Stream())
    plain, stream = (row["why"] for row in overrides.facts["met"])
    assert plain is None
    assert "each worker reads all of an IterableDataset" in stream
    assert overrides.facts["unmet"] == {}


def test_the_scripts_own_mistakes_stay_its_own(loader_class: type[DataLoader[Any]]) -> None:
    overridden("loader.pin_memory=false")
    with pytest.raises(ValueError, match="persistent_workers option needs num_workers > 0"):
        loader_class(DATA, persistent_workers=True)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        loader_class(DATA, workers=2)


@pytest.mark.parametrize("chosen", ["1", "{here}:{line}"])
def test_one_of_several_loaders_is_chosen(loader_class: type[DataLoader[Any]], chosen: str) -> None:
    line = test_one_of_several_loaders_is_chosen.__code__.co_firstlineno + 4
    overrides = overridden("loader.num_workers=1", f"loader.only={chosen.format(here=HERE, line=line + 1)}")
    first = loader_class(DATA)
    second = loader_class(DATA)
    third = loader_class(DATA)
    assert [loader.num_workers for loader in (first, second, third)] == [0, 1, 0]
    assert overrides.facts["unmet"] == {}


def test_a_choice_that_none_is_of_is_unmet(loader_class: type[DataLoader[Any]]) -> None:
    overrides = overridden("loader.num_workers=1", "loader.only=train.py:7")
    assert loader_class(DATA).num_workers == 0
    assert "chooses none of the loaders (0 at " in overrides.facts["unmet"]["loader.num_workers"]


def test_children_keep_what_the_script_gave(
    loader_class: type[DataLoader[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = overridden("loader.num_workers=1")
    monkeypatch.setenv(OWNER_VARIABLE, str(os.getppid()))
    assert loader_class(DATA).num_workers == 0
    assert overrides.facts["met"] == []


SCRIPT = """
    import random
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def main():
        loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + random.random()))
        for _ in range(5):
            for (x,) in loader:
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        print("all of it")

    main()
"""


def test_in_a_rank_it_is_applied_and_told_and_the_training_ends_where_it_should(tmp_path: Path) -> None:
    asked = {"loader.num_workers": 1, "ddp.bucket_cap_mb": 1.0}
    config: dict[str, object] = {"settings": asked, "checksum": True, "seed": 3, "stop_after": 20, "window_ranks": []}
    (tmp_path / "again").mkdir()
    done = capture(tmp_path, SCRIPT, config=config)
    again = capture(tmp_path / "again", SCRIPT, config={**config, "only_steps": True})
    for each in (done, again):
        assert (each.returncode, each.stdout) == (0, "")
        assert "--set ddp.bucket_cap_mb had no effect: the script made no DistributedDataParallel" in each.stderr
        assert len(each.run.tables.steps) == 20
    result = build(done.run)
    assert result.conditions.stopped_after == 20
    assert [row["num_workers"] for row in result.conditions.loader or ()] == [1]
    met, unmet = result.conditions.settings or ()
    assert (met.setting, met.asked, met.target, met.had, met.took, met.ranks) == (
        "loader.num_workers",
        1,
        "DataLoader",
        0,
        1,
        [0],
    )
    assert (unmet.setting, unmet.asked, unmet.target) == ("ddp.bucket_cap_mb", 1.0, None)
    loudest: Finding = result.findings[0]
    assert (loudest.id, loudest.severity) == ("setting_without_effect", "critical")
    # The same seed and the same steps come to the same parameters, whatever is recorded.
    assert result.conditions.checksums is not None
    assert build(again.run).conditions.checksums == result.conditions.checksums
    kinds = set(again.run.tables.zones["kind"])
    assert kinds <= {"backward", "optimizer", "own"}
    assert {"data_loading", "backward", "optimizer"} <= set(done.run.tables.zones["kind"])


def test_ranks_with_the_same_row_share_it_and_others_have_their_own() -> None:
    row = {"setting": "loader.num_workers", "target": "DataLoader", "place": "t.py:3", "had": 0, "took": 2, "why": None}
    asked = {"loader.num_workers": 2}
    applied = {"asked": asked, "met": [row], "unmet": {}}
    missed = {"asked": asked, "met": [], "unmet": {"loader.num_workers": "none"}}
    of = tables(
        ranks=range(4), facts={0: {"settings": applied}, 1: {"settings": applied}, 2: {"settings": missed}, 3: {}}
    )
    assert setting_rows(of) == [
        SettingRow("loader.num_workers", 2, "DataLoader", "t.py:3", 0, 2, None, [0, 1]),
        SettingRow("loader.num_workers", 2, None, None, None, None, "none", [2]),
    ]
    assert setting_rows(tables(ranks=[0], facts={0: {"settings": None}})) is None
