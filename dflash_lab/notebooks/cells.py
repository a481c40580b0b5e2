"""A notebook file as plain dicts and text.

Read without nbformat, whose import costs 2 s where JupyterLab is installed.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path


def read_notebook(path: str | os.PathLike) -> dict:
    """Read a notebook file.

    Args:
        path: A notebook in nbformat 4.

    Returns:
        The notebook as a dict; `cells` is a list of dicts.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not a notebook in nbformat 4.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no notebook at {path}")
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a notebook: {error}") from None
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise ValueError(f"{path} is not a notebook in nbformat 4")
    return notebook


def joined(text: str | list[str]) -> str:
    """Join notebook text, which a file holds as one string or as a list of lines.

    Args:
        text: A cell's source or an output's data.

    Returns:
        The text as one string.
    """
    return text if isinstance(text, str) else "".join(text)


def source(cell: dict) -> str:
    """Give a cell's source as one string.

    Args:
        cell: A cell of `read_notebook`.

    Returns:
        The source; empty for an empty cell.
    """
    return joined(cell.get("source", ""))


def has_tag(cell: dict, tag: str) -> bool:
    """Say whether a cell carries a tag.

    Args:
        cell: A cell of `read_notebook`.
        tag: The tag to look for.

    Returns:
        True when the tag is among the cell's tags.
    """
    return tag in cell.get("metadata", {}).get("tags", [])


def code_cells(notebook: dict) -> list[dict]:
    """List the cells that a run has to execute.

    Args:
        notebook: A notebook of `read_notebook`.

    Returns:
        Code cells with something in them, in order; the kernel numbers them from 1 in this order.
    """
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and source(cell).strip()]


def cell_outputs(cell: dict) -> Iterator[dict]:
    """Iterate over a cell's outputs.

    Args:
        cell: Any cell.

    Yields:
        Outputs in order; nothing for a markdown cell.
    """
    yield from cell.get("outputs", ())


def question(notebook: dict) -> str:
    """Give the notebook's question: the first heading of its first markdown cell that has one.

    Args:
        notebook: A notebook of `read_notebook`.

    Returns:
        The heading's text without `#`; empty when there is none.
    """
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            heading = re.search(r"^#{1,6}\s+(.+?)\s*#*\s*$", source(cell), flags=re.MULTILINE)
            if heading:
                return heading.group(1)
    return ""
