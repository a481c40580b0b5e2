"""Data flows one way, and planning stays light: who may import whom, checked on the source of every module."""

import ast
import graphlib
import importlib
import inspect
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dflash_lab"
TESTS = Path(__file__).parent
MAX_LINES = 400


@dataclass(frozen=True)
class Room:
    """What a room may import, by top-level name; `lazy` only inside a function, in modules named like `lazy_in`."""

    ours: frozenset[str] = frozenset()
    third_party: frozenset[str] = frozenset()
    lazy: frozenset[str] = frozenset()
    lazy_in: tuple[str, ...] = ("*",)
    lazy_ours: frozenset[str] = frozenset()


def names(text):
    return frozenset(text.split())


ROOMS = {
    "data": Room(
        ours=names("batching"),
        third_party=names("numpy pyarrow polars"),
        lazy=names("tokenizers transformers jinja2"),
        lazy_in=("chat*", "corpus*"),
    ),
    "batching": Room(third_party=names("numpy"), lazy=names("pyarrow")),
    "feed": Room(ours=names("data batching"), third_party=names("numpy torch")),
    "target": Room(
        ours=names("feed data"), third_party=names("numpy torch"), lazy=names("transformers tokenizers gguf")
    ),
    "drafter": Room(third_party=names("numpy torch safetensors")),
    "training": Room(
        ours=names("data batching feed target drafter analysis"),
        third_party=names("numpy torch safetensors"),
        lazy=names("tensorboard wandb"),
    ),
    "study": Room(
        ours=names("data batching feed target drafter training"),
        third_party=names("numpy torch"),
    ),
    "analysis": Room(ours=names("batching"), third_party=names("numpy polars pyarrow")),
    "figures": Room(third_party=names("numpy polars matplotlib")),
    "notebooks": Room(
        ours=names("analysis figures"),
        lazy=names(
            "papermill nbformat nbconvert nbclient jupyter_client jupyter_core traitlets bs4 jinja2 markupsafe IPython"
        ),
    ),
    "widgets": Room(
        lazy=names("ipywidgets IPython"),
        lazy_ours=names("data batching feed target drafter training study analysis figures notebooks"),
    ),
}

PLANNING = ("data", "batching", "analysis", "figures")
HEAVY = ("torch", "transformers", "tokenizers", "papermill", "nbformat", "IPython", "matplotlib.pyplot")


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path):
    """The room a module belongs to; None for the package's own __init__."""
    inside = path.relative_to(PACKAGE).with_suffix("").parts
    return None if inside == ("__init__",) else inside[0]


def rooms_present():
    return sorted({room_of(path) for path in modules()} - {None})


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def imports(tree, package):
    """Yield (line, dotted name, lazy) of every import; relative ones are resolved against `package`."""

    def walk(node, lazy):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, lazy
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name]), lazy
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"importlib.import_module", "__import__"}:
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.lineno, node.args[0].value, lazy
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(node)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    yield from walk(tree, False)


def complaints(room_name, module_name, source, package):
    """What this module imports and may not, one sentence each."""
    room = ROOMS[room_name]
    lazy_allowed = any(fnmatch(module_name, pattern) for pattern in room.lazy_in)
    found = []
    for line, dotted, lazy in imports(ast.parse(source), package):
        top, _, rest = dotted.partition(".")
        if top == "dflash_lab":
            other = rest.partition(".")[0]
            if other in room.ours | {room_name, ""} or (lazy and other in room.lazy_ours):
                continue
            found.append(f"line {line}: {room_name} may not import the room {other!r}")
        elif dotted.startswith(("matplotlib.pyplot", "matplotlib.pylab", "pylab")):
            found.append(f"line {line}: {dotted}: pyplot keeps every figure alive; use matplotlib.figure.Figure")
        elif top in sys.stdlib_module_names or top in room.third_party or (lazy and lazy_allowed and top in room.lazy):
            continue
        elif top in room.lazy:
            found.append(f"line {line}: {room_name} imports {top} only inside a function, in {', '.join(room.lazy_in)}")
        else:
            found.append(f"line {line}: {room_name} may not import {top}")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_what_its_room_may(path):
    room = room_of(path)
    if room is None:
        return
    assert room in ROOMS, f"{path}: add the room {room!r} to ROOMS, with what it may import"
    package = ".".join(["dflash_lab", *path.parent.relative_to(PACKAGE).parts])
    assert complaints(room, path.stem, path.read_text(encoding="utf-8"), package) == []


@pytest.mark.parametrize(
    ("room", "module", "source", "sentence"),
    [
        ("data", "readers", "import torch", "line 1: data may not import torch"),
        ("data", "readers", "def f():\n    import jinja2", "data imports jinja2 only inside a function, in chat*"),
        ("data", "chat", "import tokenizers", "data imports tokenizers only inside a function"),
        ("data", "dataset", "from ..figures import lines", "data may not import the room 'figures'"),
        ("batching", "plan", "from dflash_lab import data", "batching may not import the room 'data'"),
        ("batching", "plan", "import importlib\nimportlib.import_module('torch')", "batching may not import torch"),
        ("figures", "figures", "from matplotlib import pyplot as plt", "pyplot keeps every figure alive"),
    ],
)
def test_forbidden_import_is_found(room, module, source, sentence):
    [complaint] = complaints(room, module, source, f"dflash_lab.{room}")
    assert sentence in complaint


@pytest.mark.parametrize(
    ("room", "module", "source"),
    [
        ("data", "chat_templates", "def f():\n    from transformers import AutoTokenizer"),
        ("data", "dataset", "import json\nimport numpy as np\nfrom dflash_lab import batching\nfrom . import readers"),
        ("batching", "plan", "from .bounds import least_padding_bounds\ndef f():\n    import pyarrow.parquet"),
        ("notebooks", "run", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nbformat"),
        ("figures", "figures", "from matplotlib.figure import Figure"),
    ],
)
def test_allowed_import_passes(room, module, source):
    assert complaints(room, module, source, f"dflash_lab.{room}") == []


def test_rooms_depend_one_way():
    graphlib.TopologicalSorter({name: room.ours | room.lazy_ours for name, room in ROOMS.items()}).prepare()


def test_package_itself_imports_nothing():
    assert list(imports(ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")), "dflash_lab")) == []


def test_planning_needs_no_torch():
    present = [f"dflash_lab.{room}" for room in PLANNING if room in rooms_present()]
    assert present
    code = f"import sys, {', '.join(present)}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def public_names(room):
    module = importlib.import_module(f"dflash_lab.{room}")
    assert hasattr(module, "__all__"), f"dflash_lab.{room} has no __all__"
    return [(name, getattr(module, name)) for name in module.__all__]


def lacks_docstring(value):
    # A dataclass without a docstring gets its signature as one.
    doc = (value.__doc__ or "").strip()
    return not doc or (inspect.isclass(value) and doc.startswith(f"{value.__name__}("))


@pytest.mark.parametrize("room", rooms_present())
def test_public_names_have_docstrings(room):
    missing = []
    for name, value in public_names(room):
        if inspect.isclass(value) or inspect.isroutine(value):
            missing += [name] if lacks_docstring(value) else []
        if inspect.isclass(value) and value.__module__.startswith("dflash_lab"):
            members = {key: getattr(member, "__func__", member) for key, member in vars(value).items()}
            missing += [
                f"{name}.{key}"
                for key, member in members.items()
                if not key.startswith("_")
                and (inspect.isfunction(member) or isinstance(member, property))
                and lacks_docstring(member)
            ]
    assert missing == []


@pytest.mark.parametrize("room", rooms_present())
def test_module_docstrings(room):
    paths = [path for path in modules() if room_of(path) == room]
    assert [str(path) for path in paths if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


def test_no_module_is_longer_than_a_reader_keeps_in_mind():
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_drawer_modules():
    paths = [*modules(), *TESTS.rglob("*.py")]
    drawers = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [str(path) for path in paths if drawers & {path.stem, path.parent.name}] == []
