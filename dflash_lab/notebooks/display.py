"""What a notebook's cells show: progress that ends in its final state, facts and the answer for the report."""

import functools
import html
import os
import sys
import time
from collections.abc import Iterable, Iterator

from dflash_lab.notebooks.parameters import plain_value

FACTS_MIME = "application/vnd.dflash-lab.facts+json"
# Marks the output of `answer` in its metadata, where no front end shows it.
ANSWER_MARK = {"dflash_lab": {"role": "answer"}}
LINE_EVERY_SECONDS = 10.0
LIVE_EVERY_SECONDS = 0.2


def is_live() -> bool:
    """Say whether a person is at the notebook: JupyterLab sets JPY_SESSION_NAME, a batch run has none.

    Returns:
        True in JupyterLab; False under papermill, `run_notebook`, plain Python and other front ends.
    """
    return bool(os.environ.get("JPY_SESSION_NAME"))


def record(**facts: object) -> None:
    """Show facts about this run and leave them for the report.

    Args:
        **facts: Values by name, for example `data_name`, `data_fingerprint`, `num_samples`; numpy scalars, paths and
            tuples become plain values. A name recorded again replaces the earlier value.

    Raises:
        ValueError: If no fact is given, or a value is None, not finite or of a type that JSON does not have.
    """
    if not facts:
        raise ValueError("record() got no facts; give at least one as name=value")
    plain = {name: plain_value(value, key=name) for name, value in facts.items()}
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(shown(value))}</td></tr>" for name, value in plain.items()
    )
    text = "\n".join(f"{name}: {shown(value)}" for name, value in plain.items())
    show_bundle({FACTS_MIME: plain, "text/html": f'<table class="facts">{rows}</table>', "text/plain": text})


def answer(markdown_text: str) -> None:
    """Show the notebook's answer and leave it for the report.

    Args:
        markdown_text: The answer as Markdown, with its numbers.

    Raises:
        ValueError: If the text is empty.
    """
    if not markdown_text.strip():
        raise ValueError("answer() got an empty text; say what was found, with its number")
    show_bundle({"text/markdown": markdown_text, "text/plain": markdown_text}, metadata=ANSWER_MARK)


def progress(items: Iterable | int, label: str = "", *, total: int | None = None) -> Iterator:
    """Iterate and show how far it has come; the last thing shown is the end state, such as `50/50`.

    Live, one output is updated in place; in batch and in a terminal, a plain line comes every 10 s and at the end.

    Args:
        items: What to iterate over; a whole number n stands for `range(n)`.
        label: What is being counted, for example `batches`.
        total: Number of items when it is known but `items` has no length.

    Yields:
        The items.

    Raises:
        ValueError: If the number of items is negative.
    """
    if isinstance(items, int):
        if items < 0:
            raise ValueError(f"progress() got {items} items; legal: 0 or more")
        items, total = range(items), items
    elif total is None and hasattr(items, "__len__"):
        total = len(items)
    return _shown_progress(items, f"{label}: " if label else "", total)


def show_bundle(bundle: dict[str, object], metadata: dict | None = None) -> None:
    """Display one output in several forms; in plain Python, where nothing can, print its text.

    Args:
        bundle: Form to content by mime type; `text/plain` must be among them.
        metadata: The output's metadata.
    """
    if not _in_notebook():
        print(bundle["text/plain"], flush=True)
        return
    from IPython.display import display

    display(bundle, raw=True, metadata=metadata or {})


def shown(value: object) -> str:
    """Write a plain value for a reader: thousands separated, floats to six digits.

    Args:
        value: A value of `plain_value`.

    Returns:
        Its text.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _shown_progress(items: Iterable, label: str, total: int | None) -> Iterator:
    show = _LiveLine() if is_live() and _in_notebook() else _PlainLines()
    start = time.monotonic()
    done = 0
    finished = False
    try:
        for item in items:
            show(functools.partial(_state, label, done, total, start), done, total)
            yield item
            done += 1
        finished = True
    finally:
        # Also after a break or an error, where it must not look like the end.
        ending = "" if finished else ", stopped"
        total = done if finished and total is None else total
        state = f"{label}{done:,}/{'?' if total is None else f'{total:,}'} in {time.monotonic() - start:.1f} s{ending}"
        show.final(state, done, total)


def _state(label: str, done: int, total: int | None, start: float) -> str:
    seconds = time.monotonic() - start
    if total is None:
        return f"{label}{done:,} after {seconds:.0f} s"
    left = f", about {seconds / done * (total - done):.0f} s left" if done else ""
    return f"{label}{done:,}/{total:,} after {seconds:.0f} s{left}"


class _PlainLines:
    """Lines far apart: a saved notebook keeps every one of them."""

    def __init__(self):
        self.last = time.monotonic()

    def __call__(self, state, done, total):
        if time.monotonic() - self.last >= LINE_EVERY_SECONDS:
            self.last = time.monotonic()
            print(state(), flush=True)

    def final(self, text, done, total):
        print(text, flush=True)


class _LiveLine:
    """One output with a display id: what is saved is its last state, whereas widgets freeze at their first."""

    def __init__(self):
        self.handle = None
        self.last = 0.0

    def __call__(self, state, done, total):
        if time.monotonic() - self.last >= LIVE_EVERY_SECONDS:
            self.last = time.monotonic()
            self.final(state(), done, total)

    def final(self, text, done, total):
        from IPython.display import display

        bar = "" if not total else f'<progress value="{done}" max="{total}"></progress> '
        bundle = {"text/html": f"<div>{bar}{html.escape(text)}</div>", "text/plain": text}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)


def _in_notebook() -> bool:
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None
