"""`distprof merge` and `distprof view`: what they are asked for, where it goes, and what they say."""

from __future__ import annotations

import gzip
import http.client
import socket
import threading
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.cli import main as cli
from distprof.cli import merge
from distprof.report.selection import PARTS, Selection
from distprof.report.serve import TimelineServer
from tests.unit.handmade import mark, nccl, write_trace
from tests.unit.timelines import read_timeline
from tests.worlds import World, write


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three ranks."""
    folder = tmp_path_factory.mktemp("world") / "run"
    write(World(ranks=3, steps=6), folder)
    return folder


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command ends with."""
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("name", ["all.json", "all.json.gz", "all.pftrace"])
def test_merge_takes_ranks_steps_and_parts(
    name: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / name
    options = ["--ranks", "0,2", "--steps", "2:4", "--only", "steps,zones,collectives"]
    assert cli.main(["merge", str(run_dir), "-o", str(target), *options]) == 0
    path, size, seconds = capsys.readouterr().out.strip().split("  ")
    assert path == str(target) and size.endswith(("B", "KiB")) and seconds.endswith(" s")
    timeline = read_timeline(target)
    assert list(timeline.processes) == [0, 2]
    assert [one.name for one in timeline.on(2, "steps")] == ["step 2", "step 3"]
    assert timeline.on(2, "zones") and timeline.on(2, "collectives") and not timeline.counters


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--ranks", "3-1"], "'3-1' names no ranks, as 0,3-5 does"),
        (["--ranks", "x"], "'x' names no ranks"),
        (["--ranks", "0,7"], "there are no recordings of rank 7; there are of 0–2"),
        (["--steps", "4"], "'4' names no steps, as 10:20, 10: and :20 do"),
        (["--steps", "4:4"], "'4:4' names no steps"),
        (["--steps", "90:"], "there is no step in 90:; the run has 0–5"),
        (["--only", "zones,kernels"], "there is no 'kernels': the parts are steps, zones,"),
    ],
)
def test_what_merge_cannot_show_is_one_line(
    options: list[str], says: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "all.json"
    assert says in refused(["merge", str(run_dir), "-o", str(target), *options], capsys)
    assert not target.exists()


def test_selections_are_read_as_they_are_written() -> None:
    parse = merge.build_parser().parse_args
    assert merge.selected(parse(["x", "-o", "y"])) == Selection(None, (None, None), frozenset(PARTS))
    chosen = parse(["x", "-o", "y", "--ranks", "0,3-5", "--steps", ":20", "--only", "zones, steps"])
    assert merge.selected(chosen) == Selection(frozenset({0, 3, 4, 5}), (None, 20), frozenset({"zones", "steps"}))


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    path = tmp_path / "time line.json.gz"
    path.write_bytes(gzip.compress(b"{}"))
    return path


@pytest.fixture
def server(timeline: Path) -> Iterator[TimelineServer]:
    """A server at a free port, that ends when the file was fetched."""
    with TimelineServer(timeline, port=0) as server:
        thread = threading.Thread(target=server.serve_until_fetched, daemon=True)
        thread.start()
        yield server
        thread.join(timeout=30)
        assert not thread.is_alive(), "it goes on after the file was fetched"


def fetch(server: TimelineServer, place: str, method: str = "GET", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, place, headers={"Host": host} if host else {})
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    connection.close()
    return response


def test_perfettos_page_is_given_that_one_file(server: TimelineServer, timeline: Path) -> None:
    assert (
        server.address == f"https://ui.perfetto.dev/#!/?url=http://127.0.0.1:{server.server_port}/time%20line.json.gz"
    )
    for place in ("/", "/x", "/../time%20line.json.gz", "/time%20line.json.gz/", "/etc/passwd"):
        response = fetch(server, place)
        assert response.status == 404 and response.getheader("Access-Control-Allow-Origin") is None
    assert fetch(server, server.place, method="POST").status == 501
    assert fetch(server, server.place, host="evil.example:9001").status == 404, "another site's name for this machine"
    assert fetch(server, server.place, method="HEAD").status == 200
    assert not server.fetched
    response = fetch(server, server.place)
    assert response.status == 200 and response.body == timeline.read_bytes()  # type: ignore[attr-defined]
    assert response.getheader("Access-Control-Allow-Origin") == "https://ui.perfetto.dev"
    assert int(response.getheader("Content-Length") or 0) == timeline.stat().st_size


def test_it_listens_on_this_machine_only(server: TimelineServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    fetch(server, server.place)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_view_makes_the_timeline_and_opens_the_page_on_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setattr(TimelineServer.__init__, "__defaults__", (port,))
    fetched: list[bytes] = []
    threads: list[threading.Thread] = []

    def browser(address: str) -> bool:
        page, _, place = address.partition("#!/?url=")
        assert page == "https://ui.perfetto.dev/"
        thread = threading.Thread(target=lambda: fetched.append(urllib.request.urlopen(place, timeout=30).read()))
        threads.append(thread)
        thread.start()
        return True

    monkeypatch.setattr(webbrowser, "open_new_tab", browser)
    assert cli.main(["view", str(run_dir)]) == 0
    threads[0].join()
    assert fetched == [(run_dir / "timeline.json.gz").read_bytes()]
    assert read_timeline(run_dir / "timeline.json.gz").processes.keys() == {0, 1, 2}
    assert f"url=http://127.0.0.1:{port}/timeline.json.gz" in capsys.readouterr().out


def test_view_shows_traces_that_others_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    files = [write_trace(traces / f"rank{rank}.json", [mark(1, 0, 900), nccl(100, 50)], rank=rank) for rank in (0, 1)]
    nameless = write_trace(tmp_path / "other.json", [mark(1, 0, 900), nccl(100, 50)], rank=None)
    monkeypatch.setattr(TimelineServer.__init__, "__defaults__", (free_port(),))
    seen: list[tuple[Path, set[int]]] = []
    monkeypatch.setattr(
        TimelineServer,
        "serve_until_fetched",
        lambda server: seen.append((server.path, set(read_timeline(server.path).processes))),
    )
    assert cli.main(["view", "--no-browser", str(traces)]) == 0
    assert cli.main(["view", "--no-browser", *map(str, files)]) == 0
    of_both = [str(files[0]), str(nameless), "--rank", f"{nameless}=1"]
    assert cli.main(["view", "--no-browser", *of_both]) == 0
    assert [ranks for _, ranks in seen] == [{0, 1}] * 3
    assert not any(path.exists() for path, _ in seen), "it leaves nothing behind"
    assert sorted(traces.iterdir()) == files
    assert "timeline.json.gz is shown at" in capsys.readouterr().out


def test_without_a_browser_the_address_is_printed(
    timeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TimelineServer.__init__, "__defaults__", (free_port(),))
    monkeypatch.setattr(webbrowser, "open_new_tab", lambda _: pytest.fail("a browser was opened"))
    monkeypatch.setattr(TimelineServer, "serve_until_fetched", lambda server: None)
    assert cli.main(["view", "--no-browser", str(timeline)]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("https://ui.perfetto.dev/#!/?url=http://127.0.0.1:")


def test_what_view_cannot_show_is_one_line(
    timeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is no run directory" in refused(["view", str(timeline.parent)], capsys)
    assert "is no run directory" in refused(["view", str(timeline.parent / "nowhere")], capsys)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(TimelineServer.__init__, "__defaults__", (other.getsockname()[1],))
        assert "is in use" in refused(["view", str(timeline)], capsys)
