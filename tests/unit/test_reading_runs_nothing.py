"""What reads recordings of others runs nothing that stands in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# They run what they read, or make objects of whatever class the data names.
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "joblib", "yaml"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    *("torch.load", "torch.jit.load", "numpy.load", "np.load", "os.system", "os.popen", "runpy.run_path"),
    *("polars.read_ipc_pickle", "pd.read_pickle", "pickle.loads", "OmegaConf.load"),
}
# `capture` reads as pickle what torch made in the same process a moment before.
MAY = {"distprof/capture/collectives.py": {"pickle", "pickle.loads()"}}


def sources() -> list[Path]:
    return sorted((ROOT / "distprof").rglob("*.py"))


def dangers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What of the above a module uses, and where."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0], node.lineno
        elif isinstance(node, ast.Call):
            yield f"{ast.unparse(node.func)}()", node.lineno
            if any(word.arg == "shell" and ast.unparse(word.value) == "True" for word in node.keywords):
                yield "shell=True", node.lineno


def found(text: str) -> dict[str, int]:
    forbidden = MODULES | {f"{name}()" for name in BUILTINS | CALLS} | {"shell=True"}
    return {name: line for name, line in dangers(ast.parse(text)) if name in forbidden}


def test_no_module_unpickles_or_evaluates() -> None:
    names = {str(path.relative_to(ROOT)): set(found(path.read_text())) for path in sources()}
    assert len(names) > 100
    assert {name: used for name, used in names.items() if used} == MAY


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import yaml",
        "x = eval(text)",
        "import numpy as np\nnp.load(path)",
        "import torch\ntorch.load(path)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_it_would_be_found(text: str) -> None:
    assert found(text)


def test_what_is_read_as_python_is_only_a_literal() -> None:
    """`distributedInfo` may be written as Python: a literal is read, and a call is none."""
    uses = [path for path in sources() if "ast." in path.read_text() and "literal_eval" in path.read_text()]
    assert {path.name for path in uses} == {"header.py", "fail_if.py"}
