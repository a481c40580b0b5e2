"""Tiny notebooks for the tests of the notebooks room."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = "count: int = 3  # how many, samples"


@pytest.fixture
def make_notebook(tmp_path):
    """Give a function that writes a notebook: title, parameters cell, code cells, the last one tagged `answer`."""

    def make(name, *codes, parameters=PARAMETERS, title="# How many are there?", tags=None, folder="notebooks"):
        notebook = new_notebook(
            metadata={"kernelspec": {"name": "no-such-kernel", "display_name": "?", "language": "python"}}
        )
        notebook.cells = [new_markdown_cell(title)]
        if parameters is not None:
            notebook.cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
        for position, code in enumerate(codes):
            cell_tags = (tags or {}).get(position, ["answer"] if position == len(codes) - 1 else [])
            notebook.cells.append(new_code_cell(code, metadata={"tags": cell_tags}))
        path = tmp_path / folder / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(notebook, path)
        return path

    return make
