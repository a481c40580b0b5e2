"""Parameters of a notebook: what it declares, and whether given values fit, before anything runs."""

import ast
import difflib
import io
import json
import math
import os
import tokenize
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_lab.notebooks.cells import has_tag, read_notebook, source

FORM = "`name: type = literal  # meaning, unit`"
LEGAL_TYPES = "str, int, float, bool, list, list[...], dict, dict[str, ...]"
_LEGAL_VALUES = {
    "str": "text",
    "int": "a whole number such as 32768",
    "float": "a finite number such as 1e-4",
    "bool": "true or false",
    "list": "a list such as [0, 770]",
    "dict": "a mapping with text keys",
}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One line of a parameters cell."""

    name: str
    annotation: str
    default: object
    meaning: str


def read_parameters(path: str | os.PathLike) -> dict[str, Parameter]:
    """Read the parameters that a notebook declares in its cell tagged `parameters`.

    Args:
        path: The notebook.

    Returns:
        Name to declaration, in the order of the cell.

    Raises:
        FileNotFoundError: If there is no notebook.
        ValueError: If there is no cell tagged `parameters` or more than one, or a line is not an annotated literal.
    """
    name = Path(path).name
    tagged = [cell for cell in read_notebook(path)["cells"] if has_tag(cell, "parameters")]
    if len(tagged) != 1:
        # papermill would write over what the cells compute, or pick the first of two, without a word.
        count = "no cell" if not tagged else f"{len(tagged)} cells"
        raise ValueError(f"{name} has {count} tagged 'parameters'; it needs exactly one")
    code = source(tagged[0])
    try:
        statements = ast.parse(code).body
    except SyntaxError as error:
        raise ValueError(f"parameters cell of {name}, line {error.lineno}: {error.msg}") from None
    meanings = _comments_by_line(code)
    declared: dict[str, Parameter] = {}
    for statement in statements:
        parameter = _declaration(statement, meanings, f"parameters cell of {name}, line {statement.lineno}")
        if parameter.name in declared:
            raise ValueError(
                f"parameters cell of {name}, line {statement.lineno}: {parameter.name!r} stands there twice"
            )
        declared[parameter.name] = parameter
    return declared


def check_parameters(
    declared: Mapping[str, Parameter], given: Mapping[str, object], *, notebook: str
) -> dict[str, object]:
    """Check given values against declarations and bring them to the declared types.

    Args:
        declared: What the notebook declares.
        given: Values by name, from Python or as text from a command line.
        notebook: What to call the notebook in messages.

    Returns:
        The given values as plain Python values of the declared types, in the order given.

    Raises:
        ValueError: If a name is unknown (the message names the nearest and all legal ones) or a value does not fit.
    """
    for key in given:
        if key not in declared:
            raise ValueError(unknown_name(f"notebook {notebook} has no parameter", key, declared))
    return {key: coerce(value, declared[key].annotation, key=key) for key, value in given.items()}


def unknown_name(beginning: str, key: object, legal: Collection[str]) -> str:
    """Word the message for a misspelt parameter.

    Args:
        beginning: Who lacks it, as the beginning of the message: "notebook n.ipynb has no parameter".
        key: The name that was given.
        legal: The names that exist.

    Returns:
        A message with the nearest name and the list of legal ones.
    """
    nearest = difflib.get_close_matches(str(key).lower(), legal, n=1, cutoff=0.4)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return f"{beginning} {key!r}{hint} Legal names: {', '.join(legal) if legal else '(none)'}"


def coerce(value: object, annotation: str, *, key: str) -> object:
    """Bring one value to an annotated type, or refuse it.

    Args:
        value: A Python value, or text as a command line gives it.
        annotation: One of str, int, float, bool, list, list[...], dict, dict[str, ...].
        key: The parameter's name, for messages.

    Returns:
        A plain Python value of that type.

    Raises:
        ValueError: If the value does not fit; the message names the key, the value and what is legal.
    """
    return _fit(plain_value(value, key=key), ast.parse(annotation, mode="eval").body, key)


def plain_value(value: object, *, key: str) -> object:
    """Turn numpy scalars and arrays, paths and tuples into plain values that JSON and a notebook can carry.

    Args:
        value: The value.
        key: Its name, for messages.

    Returns:
        A str, int, float, bool, list or dict.

    Raises:
        ValueError: If it is None, not finite, or of another type, also inside a list or dict.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            # JSON has no NaN: the executed notebook could no longer be opened in JupyterLab.
            raise ValueError(f"parameter {key!r} got {value!r}; only finite numbers are legal")
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain_value(item, key=key) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(item, str) for item in value):
            raise ValueError(f"parameter {key!r} got a mapping with keys {list(value)!r}; only text keys are legal")
        return {name: plain_value(item, key=key) for name, item in value.items()}
    raise ValueError(
        f"parameter {key!r} got {value!r} ({type(value).__name__}); "
        "legal are str, int, float, bool, lists and dicts of these"
    )


def _declaration(statement: ast.stmt, meanings: dict[int, str], place: str) -> Parameter:
    """Read one statement of the cell as a declaration."""
    if (
        not isinstance(statement, ast.AnnAssign)
        or not isinstance(statement.target, ast.Name)
        or statement.value is None
    ):
        raise ValueError(f"{place}: `{ast.unparse(statement)}` is not of the form {FORM}")
    key, annotation = statement.target.id, ast.unparse(statement.annotation)
    if not _is_legal(statement.annotation):
        raise ValueError(f"{place}: type {annotation!r} of {key!r} is not legal; legal types: {LEGAL_TYPES}")
    try:
        default = ast.literal_eval(statement.value)
    except ValueError:
        raise ValueError(
            f"{place}: {key!r} is computed; only plain literals are legal, derive values in a later cell"
        ) from None
    fitted = coerce(default, annotation, key=key)
    if isinstance(default, str) and not isinstance(fitted, str):
        raise ValueError(f"{place}: {key!r} is annotated {annotation} but its value {default!r} is text")
    return Parameter(name=key, annotation=annotation, default=fitted, meaning=meanings.get(statement.end_lineno, ""))


def _comments_by_line(code: str) -> dict[int, str]:
    """Map line numbers to comments; tokenize, because a `#` may stand inside a string."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {token.start[0]: token.string.lstrip("# ").rstrip() for token in tokens if token.type == tokenize.COMMENT}


def _is_legal(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Name(id="str" | "int" | "float" | "bool" | "list" | "dict"):
            return True
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return _is_legal(item)
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[ast.Name(id="str"), item])):
            return _is_legal(item)
    return False


def _fit(value: object, annotation: ast.expr, key: str) -> object:
    """Fit a plain value to an annotation, or refuse it."""
    match annotation, value:
        case ast.Name(id="str"), str():
            return value
        case ast.Name(id="bool"), bool():
            return value
        case ast.Name(id="bool"), str() if value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        case ast.Name(id="int"), int() if not isinstance(value, bool):
            return value
        case ast.Name(id="int" | "float" as kind), str():
            try:
                return plain_value(int(value) if kind == "int" else float(value), key=key)
            except ValueError:
                pass
        case ast.Name(id="float"), int() | float() if not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                pass
        case ((ast.Name(id="list") | ast.Subscript(value=ast.Name(id="list"))), (list() | str())):
            items = _literal(value)
            if isinstance(items, (list, tuple)):
                items = plain_value(items, key=key)
                return (
                    [_fit(item, annotation.slice, key) for item in items]
                    if isinstance(annotation, ast.Subscript)
                    else items
                )
        case ((ast.Name(id="dict") | ast.Subscript(value=ast.Name(id="dict"))), (dict() | str())):
            items = _literal(value)
            if isinstance(items, dict):
                items = plain_value(items, key=key)
                if isinstance(annotation, ast.Subscript):
                    return {name: _fit(item, annotation.slice.elts[1], key) for name, item in items.items()}
                return items
    kind = ast.unparse(annotation)
    legal = _LEGAL_VALUES[kind.partition("[")[0]]
    raise ValueError(f"parameter {key!r} is annotated {kind}, got {value!r} ({type(value).__name__}); legal: {legal}")


def _literal(value: object) -> object:
    """Read text as a JSON value or a Python literal; None when it is neither."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        pass
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
