"""An executed notebook as HTML and as a summary: question, answer, main figure, facts."""

import base64
import html
import re
from dataclasses import dataclass, field
from pathlib import Path

from dflash_lab.notebooks.cells import cell_outputs, has_tag, joined, question, read_notebook, source
from dflash_lab.notebooks.display import ANSWER_MARK, FACTS_MIME
from dflash_lab.notebooks.offline import make_offline

_IMAGE_MIMES = ("image/png", "image/jpeg", "image/svg+xml")
# Cells that papermill adds to a failed notebook; the page says the same in its own words.
_REMOVED_TAGS = ("papermill-error-cell-tag", "remove-cell")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a report shows of one notebook.

    Attributes:
        question: The title; empty when there is none.
        answer: The answer as Markdown; empty when none was given.
        figure: The main figure as a `data:` address; empty when there is none.
        figure_alt: Its alternative text.
        facts: What `record` left.
    """

    question: str
    answer: str = ""
    figure: str = ""
    figure_alt: str = ""
    facts: dict[str, object] = field(default_factory=dict)


def read_summary(path: Path) -> Summary:
    """Summarise a notebook, executed or not.

    Args:
        path: The notebook.

    Returns:
        Its summary.

    Raises:
        FileNotFoundError: If there is no notebook.
        ValueError: If the file is not a notebook.
    """
    notebook = read_notebook(path)
    cells = notebook["cells"]
    facts: dict[str, object] = {}
    for cell in cells:
        for output in cell_outputs(cell):
            facts |= output.get("data", {}).get(FACTS_MIME, {})
    title = question(notebook)
    main_first = sorted(cells, key=lambda cell: not has_tag(cell, "main-figure"))
    figures = (found for cell in main_first for output in cell_outputs(cell) if (found := _figure(output, title)))
    figure, alt = next(figures, ("", ""))
    return Summary(question=title, answer=_answer(cells), figure=figure, figure_alt=alt, facts=facts)


def notebook_html(path: Path) -> str:
    """Render an executed notebook's cells as HTML that loads nothing; inputs are hidden.

    Args:
        path: The executed notebook.

    Returns:
        HTML for the inside of a page; each picture once, with its alternative text.
    """
    import nbformat
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.pop("widgets", None)
    config = Config()
    config.HTMLExporter.exclude_input = True
    config.HTMLExporter.exclude_input_prompt = True
    config.HTMLExporter.exclude_output_prompt = True
    config.HTMLExporter.embed_images = True
    config.HTMLExporter.preprocessors = [
        "nbconvert.preprocessors.TagRemovePreprocessor",
        "nbconvert.preprocessors.CoalesceStreamsPreprocessor",
    ]
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_cell_tags = _REMOVED_TAGS
    config.CoalesceStreamsPreprocessor.enabled = True
    # Not the default template: that one brings 300 kB of JupyterLab's styles and loads scripts from elsewhere.
    exporter = HTMLExporter(config=config, template_name="basic")
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"path": str(path.parent)}})
    return make_offline(body)


def markdown_html(text: str) -> str:
    """Render Markdown as HTML that loads nothing.

    Args:
        text: Markdown.

    Returns:
        HTML for the inside of a page.
    """
    from nbconvert.filters.markdown_mistune import markdown2html_mistune

    return make_offline(markdown2html_mistune(text))


def _answer(cells: list[dict]) -> str:
    """Find the answer: what `answer` showed last, else the text of the cell tagged so."""
    marked = [
        joined(output["data"]["text/markdown"])
        for cell in cells
        for output in cell_outputs(cell)
        if output.get("metadata", {}).get("dflash_lab") == ANSWER_MARK["dflash_lab"]
    ]
    if marked:
        return marked[-1]
    for cell in reversed(cells):
        if has_tag(cell, "answer"):
            if cell["cell_type"] == "markdown":
                return source(cell)
            return "\n\n".join(text for output in cell_outputs(cell) if (text := _text(output)))
    return ""


def _text(output: dict) -> str:
    """Give an output's text as Markdown; plain text becomes a code block, so that nothing in it is read as markup."""
    data = output.get("data", {})
    if "text/markdown" in data:
        return joined(data["text/markdown"])
    plain = joined(output.get("text", data.get("text/plain", ""))).rstrip()
    return f"````\n{plain}\n````" if plain else ""


def _figure(output: dict, title: str) -> tuple[str, str] | None:
    """Give an output's picture as a `data:` address with its alternative text."""
    data = output.get("data", {})
    page = joined(data.get("text/html", ""))
    image = re.search(r"<img\b[^>]*>", page, flags=re.IGNORECASE)
    alt = re.search(r"""\balt=(?:"([^"]*)"|'([^']*)')""", image.group(0)) if image else None
    alt_text = html.unescape(alt.group(1) or alt.group(2) or "") if alt else ""
    alt_text = alt_text or f"Main figure of: {title}"
    for mime in _IMAGE_MIMES:
        if mime in data:
            content = joined(data[mime])
            if mime == "image/svg+xml":
                content = base64.b64encode(content.encode()).decode()
            return f"data:{mime};base64,{''.join(content.split())}", alt_text
    embedded = re.search(r"""\bsrc=["'](data:image/[^"']+)["']""", image.group(0)) if image else None
    return (embedded.group(1), alt_text) if embedded else None
