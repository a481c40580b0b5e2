"""The house rules of a shipped notebook, as a check."""

import ast
import os
import re
from collections.abc import Iterator

from dflash_lab.notebooks.cells import has_tag, read_notebook, source
from dflash_lab.notebooks.parameters import read_parameters

MAX_CELL_LINES = 10
MAX_NOTEBOOK_LINES = 80
INLINE = "%matplotlib inline"
_SHELL_CALLS = {"os.system", "os.popen", "os.spawnl", "os.execv"}
_ABSOLUTE_PATH = re.compile(r"(/[\w.\-]+)+/?|~[/\\].*|[A-Za-z]:[/\\].*|file:.*", flags=re.DOTALL)


def check_notebook(path: str | os.PathLike) -> list[str]:
    """List what breaks the rules for shipped notebooks.

    The rules: the title is a question; one cell of annotated, commented literals tagged `parameters`; then the imports,
    `%matplotlib inline` first; no functions or classes; at most 10 lines of code a cell but the parameters', and 80 in
    all; no shell, installs, `sys.path`, warnings filters or absolute paths; the last cell, and only it, tagged
    `answer`; nothing of a run stored.

    Args:
        path: The notebook.

    Returns:
        One text for each breach, with the cell's position counted from 1; empty when the notebook is clean.

    Raises:
        FileNotFoundError: If there is no notebook.
        ValueError: If the file is not a notebook in nbformat 4.
    """
    notebook = read_notebook(path)
    cells = notebook["cells"]
    return [
        *_title(cells),
        *_parameters(path, cells),
        *_imports(cells),
        *_code(cells),
        *_answer(cells),
        *_stored(notebook),
    ]


def _title(cells: list[dict]) -> Iterator[str]:
    first = source(cells[0]).strip().splitlines() if cells and cells[0]["cell_type"] == "markdown" else []
    if not first or not re.fullmatch(r"# .*\?", first[0].strip()):
        yield "cell 1: must be markdown whose first line is a title and a question, `# ...?`"


def _parameters(path: str | os.PathLike, cells: list[dict]) -> Iterator[str]:
    try:
        declared = read_parameters(path)
    except ValueError as error:
        yield str(error)
        return
    position, code = next((n, source(cell)) for n, cell in enumerate(cells, 1) if has_tag(cell, "parameters"))
    for parameter in declared.values():
        if not parameter.meaning:
            yield f"cell {position}: parameter {parameter.name!r} has no comment with its meaning and unit"
        # papermill's own reader works line by line: these make it miss the parameter, and it warns about a name it has.
        if "=" in parameter.meaning:
            yield f"cell {position}: the comment of parameter {parameter.name!r} has a '='"
        if "#" in repr(parameter.default):
            yield f"cell {position}: the value of parameter {parameter.name!r} has a '#'"
    if any(line.startswith("#") for line in code.splitlines()):
        yield f"cell {position}: comments stand at the end of a parameter's line, not on lines of their own"


def _imports(cells: list[dict]) -> Iterator[str]:
    importing = [
        n for n, cell in enumerate(cells, 1) if cell["cell_type"] == "code" and _nodes(cell, ast.Import, ast.ImportFrom)
    ]
    if not importing:
        return
    if source(cells[importing[0] - 1]).strip().splitlines()[0].strip() != INLINE:
        yield f"cell {importing[0]}: the imports cell must begin with `{INLINE}`"
    for position in importing[1:]:
        yield f"cell {position}: imports stand in one cell, here cell {importing[0]}"
    for position, cell in enumerate(cells, 1):
        if has_tag(cell, "parameters") and position > importing[0]:
            yield f"cell {position}: the parameters come before the imports"


def _code(cells: list[dict]) -> Iterator[str]:
    total = 0
    for position, cell in enumerate(cells, 1):
        if cell["cell_type"] != "code":
            continue
        lines = [line.strip() for line in source(cell).splitlines()]
        num_lines = sum(bool(line) and not line.startswith("#") for line in lines)
        total += num_lines
        # A parameter is one line, and a notebook has as many as it needs.
        if num_lines > MAX_CELL_LINES and not has_tag(cell, "parameters"):
            yield f"cell {position}: {num_lines} lines of code, at most {MAX_CELL_LINES}"
        for line in lines:
            if line.startswith(("!", "%", "?")) and line != INLINE:
                yield f"cell {position}: no shell, installs or magics: `{line}`"
        for node in _nodes(cell, ast.AST):
            if breach := _breach(node):
                yield f"cell {position}: {breach}"
        if lines and not _nodes(cell, ast.Module):
            yield f"cell {position}: is not Python"
    if total > MAX_NOTEBOOK_LINES:
        yield f"{total} lines of code in all, at most {MAX_NOTEBOOK_LINES}"


def _breach(node: ast.AST) -> str:
    """Say what one node of the syntax tree breaks; empty when nothing."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return f"no functions: `def {name}` belongs in the package"
        case ast.ClassDef(name=name):
            return f"no classes: `class {name}` belongs in the package"
        case (
            ast.Attribute(value=ast.Name(id="sys"), attr="path")
            | ast.ImportFrom(module="sys", names=[ast.alias(name="path")])
        ):
            return "no sys.path"
        case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in _SHELL_CALLS:
            return f"no shell: `{module}.{name}`"
        case ast.Import(names=[ast.alias(name="subprocess")]) | ast.ImportFrom(module="subprocess"):
            return "no shell: `subprocess`"
        case ast.Call(func=ast.Name(id="get_ipython")):
            return "no shell, installs or magics: `get_ipython()`"
        case ast.Attribute(value=ast.Name(id="warnings"), attr="filterwarnings" | "simplefilter" | "catch_warnings"):
            return "no warnings filters"
        case ast.Constant(value=str(text)) if _ABSOLUTE_PATH.fullmatch(text):
            return f"no absolute paths: {text!r}"
    return ""


def _answer(cells: list[dict]) -> Iterator[str]:
    tagged = [n for n, cell in enumerate(cells, 1) if has_tag(cell, "answer")]
    if tagged != [len(cells)]:
        yield f"the last cell, and only it, must be tagged 'answer'; tagged: {tagged or 'none'} of {len(cells)}"


def _stored(notebook: dict) -> Iterator[str]:
    for position, cell in enumerate(notebook["cells"], 1):
        if cell.get("outputs"):
            yield f"cell {position}: has outputs stored"
        if cell.get("execution_count") is not None:
            yield f"cell {position}: has an execution count stored"
    if "widgets" in notebook["metadata"]:
        yield "widget state is stored"


def _nodes(cell: dict, *kinds: type) -> list[ast.AST]:
    """Give the nodes of these kinds in a code cell, magics and shell lines left out; none when it does not parse."""
    plain = re.sub(r"^([ \t]*)[!%?].*$", r"\1pass", source(cell), flags=re.MULTILINE)
    try:
        return [node for node in ast.walk(ast.parse(plain)) if isinstance(node, kinds)]
    except SyntaxError:
        return []
