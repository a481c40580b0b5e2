"""The documented functions of Python's standard library, read from its source files without importing a module."""

from __future__ import annotations

import ast
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Other people's packages, tests, and programs that nobody imports; topics have a form of their own.
SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "ensurepip",
        "idlelib",
        "lib-dynload",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    }
)
# Shorter ones say no more than the name does.
MIN_DOCSTRING_CHARACTERS = 20
# The docstring counts: at least one statement is left to write.
MIN_STATEMENTS = 2


@dataclass(frozen=True, kw_only=True)
class DocumentedFunction:
    """One function or method.

    Attributes:
        module: Dotted name of its module.
        name: Dotted name inside the module, such as "JSONDecoder.decode".
        signature: The source from `def` to the colon.
        docstring: Its docstring, cleaned of indentation.
        code: The source without the docstring, cleaned of indentation.
    """

    module: str
    name: str
    signature: str
    docstring: str
    code: str


def documented_functions(root: Path | None = None) -> Iterator[DocumentedFunction]:
    """Read all documented functions, modules by name and functions in the order of the source.

    Args:
        root: Folder of Python sources; None takes this Python's standard library.

    Raises:
        ValueError: If the folder holds no Python sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    files = {_module_name(path.relative_to(root)): path for path in _source_files(root)}
    if not files:
        raise ValueError(f"{root} holds no Python sources; the built-in corpus is made from them")
    for module in sorted(files):
        source = _read_source(files[module])
        if source is not None:
            yield from _functions(module, source)


def help_topics(root: Path | None = None) -> dict[str, str]:
    """Read the texts behind `help("assert")` and the like: name -> text, by name.

    Args:
        root: Folder of the standard library; None takes this Python's.

    Raises:
        ValueError: If this Python comes without them.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    path = root / "pydoc_data" / "topics.py"
    source = _read_source(path) if path.is_file() else None
    for node in ast.parse(source or "").body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return dict(sorted(ast.literal_eval(node.value).items()))
    raise ValueError(f"{path} holds no help topics; this Python comes without them")


def _source_files(root: Path) -> Iterator[Path]:
    for path in root.rglob("*.py"):
        folders = path.relative_to(root).parts[:-1]
        # config-3.11-x86_64-linux-gnu and _sysconfigdata say how this very Python was compiled.
        if SKIPPED_FOLDERS.isdisjoint(folders) and not any(folder.startswith("config-") for folder in folders):
            if not path.name.startswith("_sysconfigdata"):
                yield path


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _read_source(path: Path) -> str | None:
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):
        return None


def _functions(module: str, source: str) -> Iterator[DocumentedFunction]:
    with warnings.catch_warnings():
        # Old modules hold escapes that newer Pythons warn about.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return
    lines = source.split("\n")
    for name, node in _definitions(tree, ""):
        docstring = ast.get_docstring(node)
        if docstring is None or len(docstring) < MIN_DOCSTRING_CHARACTERS or len(node.body) < MIN_STATEMENTS:
            continue
        text = node.body[0]
        if text.lineno == node.lineno or node.body[1].lineno == text.end_lineno:
            continue  # the docstring shares a line with code
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        yield DocumentedFunction(
            module=module,
            name=name,
            signature=_dedent(lines[node.lineno - 1 : text.lineno - 1], node.col_offset),
            docstring=docstring.strip(),
            code=_dedent(
                lines[start - 1 : text.lineno - 1] + lines[text.end_lineno : node.end_lineno], node.col_offset
            ),
        )


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from _definitions(child, prefix)


def _dedent(lines: list[str], columns: int) -> str:
    """Take `columns` off each line's start; lines of a string that begin further left stay as they are."""
    return "\n".join(line[columns:] if not line[:columns].strip() else line for line in lines).strip("\n")
