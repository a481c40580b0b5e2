"""Decoded text with the tokens coloured by who wrote them: the drafter's that were accepted, and the target's own."""

import html
from collections.abc import Sequence

from dflash_lab.notebooks.display import show_bundle

_BOX = "white-space: pre-wrap; max-height: 28em; overflow: auto; padding: 0.6em; border: 1px solid rgba(127, 127, 127)"
# Pale fills with a strong line below: readable on light and dark pages, and in print without colours.
_ACCEPTED = "background: rgba(0, 158, 115, 0.25); border-bottom: 2px solid rgb(0, 158, 115)"
_TARGETS = "border-bottom: 2px dotted rgba(127, 127, 127)"


def show_decoded(pieces: Sequence[str], acceptance_lengths: Sequence[int], caption: str = "") -> None:
    """Show a decoded answer, its accepted draft tokens marked.

    Args:
        pieces: Text of each new token, in order.
        acceptance_lengths: Tokens of each verification, >= 1: the accepted draft tokens and, last, the target's own.
            A first token that comes from reading the prompt stands before them; the last verification may be cut off.
        caption: A sentence above it.

    Raises:
        ValueError: If the lengths do not make up the tokens.
    """
    marks = _accepted(len(pieces), acceptance_lengths)
    spans = [
        f'<span style="{_ACCEPTED if accepted else _TARGETS}">{html.escape(piece)}</span>'
        for piece, accepted in zip(pieces, marks, strict=True)
    ]
    share = f"{sum(marks)} of {len(marks)} tokens are the drafter's"
    key = f'<span style="{_ACCEPTED}">accepted draft token</span> <span style="{_TARGETS}">the target\'s own</span>'
    page = f'<p>{html.escape(caption)} ({share}) {key}</p><pre style="{_BOX}">{"".join(spans)}</pre>'
    plain = "".join(f"⟦{piece}⟧" if accepted else piece for piece, accepted in zip(pieces, marks, strict=True))
    show_bundle({"text/html": page, "text/plain": f"{caption} ({share}, in ⟦ ⟧)\n{plain.replace('⟧⟦', '')}"})


def _accepted(num_tokens: int, acceptance_lengths: Sequence[int]) -> list[bool]:
    """Which tokens were drafted and accepted: all of a verification but its last."""
    if any(length < 1 for length in acceptance_lengths):
        raise ValueError(f"acceptance_lengths holds {min(acceptance_lengths)}; legal: at least the target's 1")
    marks = [False]
    for length in acceptance_lengths:
        marks += [True] * (length - 1) + [False]
    if not len(marks) - max([0, *acceptance_lengths]) <= num_tokens <= len(marks):
        raise ValueError(
            f"acceptance_lengths add up to {len(marks) - 1} tokens after the first, but there are {num_tokens} pieces; "
            f"legal: one piece a token, the last verification cut off at most"
        )
    return marks[:num_tokens]
