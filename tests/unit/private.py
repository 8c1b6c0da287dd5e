"""Private values of many shapes, planted into recordings in many places."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import distprof
from distprof.pipeline import build
from distprof.result import to_json
from distprof.run.directory import RunDirectory

# Markers stand nowhere else, and none is a part of another.
marker = st.text("bcdfghjklmnprstvwxz0123456789", min_size=7, max_size=12).map(lambda text: f"zq{text}q")

# Shapes that tell by themselves that they are private.
SHAPES: list[Callable[[str], str]] = [
    lambda m: f"/home/{m}/project/train.py",
    lambda m: f"/mnt/data sets/{m}/my file.csv",
    lambda m: f"~/{m}/x",
    lambda m: f"../{m}/x",
    lambda m: f"experiments/{m}/model.py",
    lambda m: f"{m}.ckpt",
    lambda m: f"C:\\Users\\{m}\\data.bin",
    lambda m: f"\\\\server\\{m}\\x",
    lambda m: f"file:///scratch/{m}",
    lambda m: f"s3://bucket/{m}/part-0",
    lambda m: f"https://joe:{m}@example.org/x",
    lambda m: f"{m}@example.org",
    lambda m: f"joe.{m}+x@mail.{m}.example.com",
    lambda m: f"{m}.cluster.internal",
    lambda m: f"ghp_{m}00000000",
    lambda m: f"hf_{m}ABCDEFGH",
    lambda m: f"sk-{m}-0123456789",
    lambda m: f"AKIA{m}",
    lambda m: f"eyJhbGciOi.{m}.abc",
    lambda m: f"Authorization: Bearer {m}=",
    lambda m: f"--api-key {m}",
    lambda m: f"password={m}",
    lambda m: f"db_password: '{m} x'",
    lambda m: f"WANDB_DIR={m}",
    lambda m: f"-----BEGIN PRIVATE KEY-----\n{m}\n-----END PRIVATE KEY-----",
    lambda m: f"Aa1{m}" + "Zz9y" * 8,
    lambda m: f"Authorization: {m}",
    lambda m: f"authorization: Token {m}",
    lambda m: f"--authorization {m}",
    lambda m: f"BEARER {m}00",
    lambda m: f"cookie: a=b; sid={m}",
    lambda m: f"passphrase: {m}",
    lambda m: f"pass={m}",
    lambda m: f"--hf_tokens {m}",
    lambda m: f"encryption_key={m}",
    lambda m: f"ssh_key: {m}",
    lambda m: f"session_id={m}",
    lambda m: f"--token -x{m}",
    lambda m: f'{{"password": "{m} x"}}',
    lambda m: f'{{\\"password\\": \\"{m}\\"}}',
    lambda m: f"wJal{m}7MDENG/bPxRfiCYEXAMPLEKEYabcdefghijklm"[:40],
    lambda m: f"AIzaSyD_{m}e5f4g3h2i1",
    lambda m: f"sk_live_{m}ABCDEFG",
    lambda m: f"npm_{m}ABCDEFGHIJKLM",
    lambda m: f"pypi-{m}ABCDEFGHIJKLM",
    lambda m: f"wandb_v1_{m}ABC",
    lambda m: f"nvapi-{m}",
    lambda m: f"r8_{m}ABCDEFGHIJKLM",
    lambda m: f"dckr_pat_{m}",
    lambda m: f"xapp-1-{m}",
    lambda m: f"https://{m}@github.com/x",
    lambda m: f"postgres://u:a/{m}@db",
    lambda m: f"%2Fhome%2Fbob%2F{m}",
    lambda m: f"$HOME/{m}",
    lambda m: f"${{SCRATCH}}/{m}",
    lambda m: f"git@github.com:acme/{m}",
    lambda m: f"//server/share/{m}",
    lambda m: f"load /mnt/a=b/{m}",
    lambda m: f"load /mnt/it's/a&b/{m}",
    lambda m: f"load /mnt/a;b/c*d?e/{m}",
    lambda m: f"a@b.org/d/e/{m}",
]

# Ways in which a value stands in a text.
AROUND: list[Callable[[str], str]] = [
    lambda v: v,
    lambda v: f"{v}",
    lambda v: f"reading {v}",
    lambda v: f'open("{v}") failed',
    lambda v: f"{v}(33): forward",
    lambda v: f"torch/nn/modules/module.py(1501): _call_impl;{v}(3): main",
]


@dataclass(frozen=True)
class Plant:
    """A private text, what of it must not be seen, and where it is planted.

    Attributes:
        told: it has no shape: it is private since it stands in this field of the facts.
    """

    text: str
    marker: str
    place: str
    escaped: bool
    told: str | None = None


PLACES = (
    *("name", "annotation", "argument", "unknown argument", "list", "key", "stack", "process", "thread", "category"),
    *("before the events", "after the events", "key of the header", "nested"),
    *("exception", "problems", "config", "environment", "argv", "command", "message", "absent", "node", "versions"),
    *("zone", "group", "model", "key of the facts", "scheduler", "report", "digest"),
)
# Where a value is private, whatever it looks like.
TOLD = ("host", "argv", "environment", "command", "user")


def plants() -> st.SearchStrategy[Plant]:
    shaped = st.builds(
        lambda m, shape, around, place, escaped: Plant(around(shape(m)), m, place, escaped),
        marker,
        st.sampled_from(SHAPES),
        st.sampled_from(AROUND),
        st.sampled_from(PLACES),
        st.booleans(),
    )
    told = st.builds(
        lambda m, place, escaped, field, around: Plant(around.format(m), m, place, escaped, field),
        marker,
        st.sampled_from(PLACES),
        st.booleans(),
        st.sampled_from(TOLD),
        st.sampled_from(["{}", "on {}: x", "aten::{}", "x_{}_y", "{}/4"]),
    )
    return st.one_of(shaped, told)


def plant(run: RunDirectory, planted: list[Plant]) -> None:
    """Plant into rank 1's recordings, its first window, the manifest and an agent's file."""
    _edit(run.manifest, lambda value: [_manifest(value, one) for one in planted])
    files = run.rank(0, 1)
    _edit(files.facts, lambda value: [_facts(value, one) for one in planted])
    run.nodes.mkdir(exist_ok=True)
    node = {"schema": "distprof.node.v1", "host": "host0", "scheduler": {}, "attempts": [], "told": [], "ended": None}
    for one in planted:
        if one.place == "node":
            node["host"] = one.text
        if one.place == "scheduler":
            node["scheduler"] = {"SLURM_JOB_NAME": one.text}
    (run.nodes / "host0-17.json").write_text(json.dumps({**node, "pid": 17, "started_unix_ns": 1}))
    _lines(files.zones, [one for one in planted if one.place == "zone"], lambda one: ["zone", one.text])
    for one in planted:
        if one.place == "report":
            run.report_json.write_text(json.dumps({"x": one.text}))
        if one.place == "digest":
            run.digest.mkdir(exist_ok=True)
            (run.digest / "tables").write_text(one.text)
    window = files.window(0)
    trace = gzip.decompress(window.read_bytes()).decode()
    for one in planted:
        trace = _trace(trace, one)
    if any(one.escaped for one in planted):
        window.unlink()
        files.window(0, compressed=False).write_text(trace)
    else:
        window.write_bytes(gzip.compress(trace.encode()))


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def _manifest(value: dict[str, Any], one: Plant) -> None:
    if "command" in (one.place, one.told):
        value["command"].append(one.marker if one.told == "command" else one.text)
    if one.place == "config":
        value["config"] = {"run_dir": one.text, "settings": {"loader.x": one.text}}
    if one.place == "versions":
        value["versions"]["extra"] = one.text
    if one.place == "message":
        value["ended"] = {"error": one.text, "failures": {"1": {"exit_code": 1, "message": [one.text]}}}
    if one.place == "absent":
        value["ended"] = {"absent": {"3": one.text}}


def _facts(value: dict[str, Any], one: Plant) -> None:
    texts = {
        "exception": {"exit": {"reason": "exception", "exception": one.text}},
        "problems": {"problems": [one.text]},
        "model": {"models": [{"name": "Net", "mode": one.text}]},
        "key of the facts": {one.text: {"x": one.text}},
    }
    value.update(texts.get(one.place, {}))
    if "environment" in (one.place, one.told):
        variables = value.setdefault("environment", {})
        variables[f"NCCL_{len(variables)}"] = one.marker if one.told == "environment" else one.text
    if "argv" in (one.place, one.told):
        value["argv"] = [*value["argv"], "--name", one.marker if one.told == "argv" else one.text]
    if one.told == "host":
        value.setdefault("seen", []).append({"host": one.marker})
    if one.told == "user":
        value.setdefault("seen", []).append({"cwd": f"/home/{one.marker}/x"})
    if one.place == "group":
        value["groups"][0]["desc"] = one.text


def _lines(path: Path, planted: list[Plant], pair: Callable[[Plant], list[str]]) -> None:
    names = {str(1000 + number): pair(one) for number, one in enumerate(planted)}
    with path.open("a") as file:
        file.write(
            json.dumps({"names": names, "rows": [value for key in names for value in (int(key), 0, 1, 1)]}) + "\n"
        )


def _trace(trace: str, one: Plant) -> str:
    text = "".join(f"\\u{ord(char):04x}" for char in one.text) if one.escaped else json.dumps(one.text)[1:-1]
    event = '{"ph":"X","cat":"%s","name":"%s","pid":1,"tid":1,"ts":1.5,"dur":2,"args":{%s}},'
    events = {
        "name": event % ("cpu_op", text, ""),
        "annotation": event % ("user_annotation", text, ""),
        "category": event % (text, "x", ""),
        "argument": event % ("cpu_op", "x", f'"Concrete Inputs":["{text}",""]'),
        "unknown argument": event % ("cpu_op", "x", f'"whatever":"{text}"'),
        "list": event % ("cpu_op", "x", f'"whatever":[1,["{text}"],{{"name":"{text}"}}]'),
        "key": event % ("cpu_op", "x", f'"{text}":1,"y":{{"{text}":"z"}}'),
        "stack": event % ("cpu_op", "x", f'"Call stack":"{text}"'),
        "process": f'{{"ph":"M","name":"process_name","pid":1,"args":{{"name":"{text}"}}}},',
        "thread": f'{{"ph":"X","cat":"cpu_op","name":"x","pid":"{text}","tid":"{text}","ts":1,"dur":1}},',
    }
    if one.place in events:
        return trace.replace('"traceEvents": [', f'"traceEvents": [{events[one.place]}', 1)
    headers = {
        "before the events": f'{{"traceName":"{text}","note":"{text}",',
        "key of the header": f'{{"{text}":1,',
        "nested": f'{{"deep":{{"a":[{{"b":"{text}"}}]}},',
    }
    if one.place in headers:
        return headers[one.place] + trace[1:]
    return f'{trace[:-1]},"comment":"{text}"}}' if one.place == "after the events" else trace


def all_text(folder: Path) -> Iterator[tuple[str, str]]:
    """Everything that stands in a folder: names of files, and contents packed, unpacked, and with escapes undone."""
    for path in sorted(folder.rglob("*")):
        yield str(path.relative_to(folder)), str(path.relative_to(folder))
        if not path.is_file():
            continue
        data = path.read_bytes()
        yield path.name, data.decode("latin-1")
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        text = data.decode()
        yield path.name, text
        for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
            yield path.name, json.dumps(json.loads(line), ensure_ascii=False)


def figures(*paths: Path) -> Any:
    """The report without its texts, and without what depends on the files' sizes."""
    report = json.loads(to_json(build(distprof.load(*paths))))
    report["overhead"]["trace_bytes"] = None
    return _without_texts(report)


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_texts(inner) for inner in value]
    return "" if isinstance(value, str) else value
