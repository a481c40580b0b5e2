"""Tables and marked text as a reader sees them, in light and dark themes, in JupyterLab and in the report."""

import html
import re
from collections.abc import Iterable

from dflash_lab.notebooks.display import show_bundle

# Column names carry their units; these are shares, shown as percentages.
_SHARE = re.compile(r"(^|_)(share|excess)(_|$)")
# Means of counts are floats; whole ones are shown as the counts that they are.
_COUNT = re.compile(r"^num_|_(tokens|batches|samples)$")
MAX_ROWS = 40
# A span of text longer than this keeps its two ends, where mask edges are.
MAX_SPAN_CHARACTERS = 700

_BOX = "white-space: pre-wrap; max-height: 28em; overflow: auto; padding: 0.6em; border: 1px solid rgba(127, 127, 127)"
# Numbers and short texts such as an interval stay in one line, whatever the page around them says of long words.
MAX_UNBROKEN_CHARACTERS = 20
_HIDE = "opacity: 0.65"
_MARK = "background: rgba(0, 158, 115, 0.25); border-bottom: 2px solid rgb(0, 158, 115)"


def show_table(table: object, caption: str = "") -> None:
    """Show a table with numbers for people: thousands separated, shares in percent, missing values as a dash.

    Args:
        table: A polars DataFrame whose column names carry their units, as those of `analysis`; of more than 40 rows
            the first 40 are shown, and how many are not.
        caption: A sentence above it.
    """
    columns = list(table.columns)  # type: ignore[attr-defined]
    rows = list(table.head(MAX_ROWS).iter_rows())  # type: ignore[attr-defined]
    texts = [[readable(name, value) for name, value in zip(columns, row, strict=True)] for row in rows]
    numeric = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    align = ["right" if is_number else "left" for is_number in numeric]
    names = [name.replace("_", " ") for name in columns]
    head = "".join(
        f'<th style="text-align: {side}">{html.escape(name)}</th>' for name, side in zip(names, align, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row, align))}</tr>" for row in texts)
    more = len(table) - len(rows)  # type: ignore[arg-type]
    rest = f"{more:,} more rows are not shown." if more else ""
    title = f"<p>{html.escape(caption)}</p>" if caption else ""
    drawn = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    page = f'{title}<div style="overflow-x: auto">{drawn}</div>' + (f"<p>{rest}</p>" if rest else "")
    lines = [caption, *(" | ".join(row) for row in [names, *texts]), rest]
    show_bundle({"text/html": page, "text/plain": "\n".join(line for line in lines if line)})


def _cell(text: str, side: str) -> str:
    unbroken = side == "right" or len(text) <= MAX_UNBROKEN_CHARACTERS
    wrap = "white-space: nowrap" if unbroken else "overflow-wrap: normal"
    return f'<td style="text-align: {side}; {wrap}">{html.escape(text)}</td>'


def readable(name: str, value: object) -> str:
    """Write one value of a table for a reader.

    Args:
        name: Its column, whose words say what kind of number it is.
        value: The value.
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(readable(name, item) for item in value)
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and _SHARE.search(name):
        return percent(value)
    if isinstance(value, int) or abs(value) >= 1_000 or (float(value).is_integer() and _COUNT.search(name)):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def percent(share: float | None) -> str:
    """Write a share for a reader: 0.865 is 86.5 %, 0.9997 is 99.97 %, 0.00024 is 0.024 %; None is a dash.

    Args:
        share: A share, 1 for the whole.
    """
    if share is None:
        return "–"
    number = 100 * share
    if number == 0 or 1 <= abs(number) < 99.95 or abs(number) >= 100:
        return f"{number:.1f} %"
    # Near nothing and near the whole one decimal would say "none" or "all".
    return (
        f"{number:.2f} %"
        if abs(number) >= 0.1 and number < 99.995
        else f"{number:.2g} %"
        if abs(number) < 0.1
        else "> 99.99 %"
    )


def show_spans(spans: Iterable[object], caption: str = "") -> None:
    """Show a sample's text with the supervised parts marked.

    Args:
        spans: Objects with `text`, `supervised` and `num_tokens`, such as `data.TextSpan`.
        caption: A sentence above it.
    """
    pieces, plain = [], []
    for span in spans:
        text = _shortened(span.text)  # type: ignore[attr-defined]
        supervised = span.supervised  # type: ignore[attr-defined]
        title = f"{span.num_tokens:,} tokens, {'supervised' if supervised else 'not supervised'}"  # type: ignore[attr-defined]
        pieces.append(f'<span title="{title}" style="{_MARK if supervised else _HIDE}">{html.escape(text)}</span>')
        plain.append(f"⟦{text}⟧" if supervised else text)
    key = f'<span style="{_MARK}">supervised</span> <span style="{_HIDE}">not supervised</span>'
    page = f'<p>{html.escape(caption)} {key}</p><pre style="{_BOX}">{"".join(pieces)}</pre>'
    show_bundle({"text/html": page, "text/plain": f"{caption} (supervised text in ⟦ ⟧)\n{''.join(plain)}"})


def _shortened(text: str) -> str:
    if len(text) <= MAX_SPAN_CHARACTERS:
        return text
    half = MAX_SPAN_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
