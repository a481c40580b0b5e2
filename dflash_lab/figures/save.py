"""Figures on disk and in a notebook: PNG, SVG and the data behind, the same bytes every time."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from dflash_lab.figures.style import figure_alt_text, house_style

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class SavedFigure:
    """A figure that has been written; as the last value of a notebook cell it shows itself.

    Attributes:
        name: Name without folder and ending.
        png_path: The picture.
        svg_path: The same as vectors, with text as text.
        csv_path: The data behind it.
        alt_text: What it shows, with its numbers.
        png: The bytes of the picture.
    """

    name: str
    png_path: Path
    svg_path: Path
    csv_path: Path
    alt_text: str
    png: bytes = field(repr=False)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        picture = base64.b64encode(self.png).decode("ascii")
        caption = f"{_first_sentence(self.alt_text)} Data: figures/{self.name}.csv"
        return {
            "image/png": picture,
            # JupyterLab, papermill and nbconvert drop an alt text that is not in the HTML itself.
            "text/html": (
                f'<figure><img alt="{html.escape(self.alt_text, quote=True)}" '
                f'style="width:100%;max-width:36em;height:auto" src="data:image/png;base64,{picture}">'
                f"<figcaption>{html.escape(caption)}</figcaption></figure>"
            ),
            "text/plain": self.alt_text,
        }


def save_figure(
    fig: Figure, name: str, *, table: pl.DataFrame, outputs: str | os.PathLike[str] = "outputs"
) -> SavedFigure:
    """Write a figure and the data behind it; the same figure gives the same bytes in every process.

    Args:
        fig: A figure with an alt text: what a plot function gave.
        name: Letters, digits, "-" and "_", at most 100 and no folder; an earlier figure of that name is replaced.
        table: The data that the figure shows; nested columns are written as JSON.
        outputs: Folder that holds (or gets) the folder "figures".

    Returns:
        The three paths outputs/figures/NAME.png, .svg and .csv, and the picture for a notebook.

    Raises:
        ValueError: If the name is not legal, the figure has no alt text or the table no columns.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"name is {name!r}; legal: up to 100 letters, digits, - and _, the first a letter or digit")
    alt_text = figure_alt_text(fig)
    if not alt_text:
        raise ValueError(f"figure {name!r} has no alt text; give it one with figures.set_alt_text(fig, text)")
    if not table.columns:
        raise ValueError(f"the table behind figure {name!r} has no columns; legal: the data that the figure shows")
    # With None no file carries a date or a version, and two runs give equal bytes.
    spoken = {"Title": _first_sentence(alt_text), "Description": alt_text}
    contents = {
        "png": _drawn(fig, "png", {"Software": None}),
        "svg": _drawn(fig, "svg", {"Date": None, "Creator": None, **spoken}),
        "csv": _as_csv(table),
    }
    folder = Path(outputs) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {ending: folder / f"{name}.{ending}" for ending in contents}
    for ending, content in contents.items():
        _write_whole(paths[ending], content)
    return SavedFigure(name, paths["png"], paths["svg"], paths["csv"], alt_text, contents["png"])


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]


def _drawn(fig: Figure, ending: str, metadata: dict[str, str | None]) -> bytes:
    buffer = io.BytesIO()
    with house_style():
        fig.savefig(buffer, format=ending, metadata=metadata)
    return buffer.getvalue()


def _as_csv(table: pl.DataFrame) -> bytes:
    nested = {
        name: pl.Series(name, [_as_json(value) for value in table[name].to_list()], dtype=pl.String)
        for name, dtype in table.schema.items()
        if dtype.is_nested()
    }
    return table.with_columns(**nested).write_csv().encode("utf-8")


def _as_json(value: object) -> str | None:
    return None if value is None else json.dumps(value, default=str, ensure_ascii=False)


def _write_whole(path: Path, content: bytes) -> None:
    """Write aside and rename, so that a reader sees the old file or the new one and never half of one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
