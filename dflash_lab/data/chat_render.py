"""A conversation through a chat template: the text, and what the template's own marks give the assistant."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_lab.data.chat_format import ChatFormat

Turn = dict[str, str]

KEPT_TURN_FIELDS = ("role", "content", "reasoning_content")
SHOWN_CHARACTERS = 40

# What a template that asks `strftime_now` for today's date is told, so that a file gives the same tokens on any day:
# 26 July 2024, the date that Llama 3.1's template writes where no clock is at hand.
PINNED_DATE = {
    "%d": "26",
    "%-d": "26",
    "%b": "Jul",
    "%B": "July",
    "%m": "07",
    "%-m": "7",
    "%Y": "2024",
    "%y": "24",
    "%a": "Fri",
    "%A": "Friday",
    "%j": "208",
    "%F": "2024-07-26",
    "%H": "00",
    "%I": "12",
    "%M": "00",
    "%S": "00",
    "%p": "AM",
    "%T": "00:00:00",
}


@dataclass(frozen=True, kw_only=True)
class ChatProblem:
    """Why a conversation cannot be encoded.

    Attributes:
        reason: Short key that problems are counted by.
        text: The whole story: field, value and what is legal.
        refuses_template: True when the template is at fault, so that leaving out one row would hide the mistake.
    """

    reason: str
    text: str
    refuses_template: bool = False


class Stop(Exception):
    """Carries a problem out of the middle of an encoding.

    Args:
        reason: As in ChatProblem.
        text: As in ChatProblem.
        fault: Whose it is; "unclear" where an ordinary conversation must tell an odd row from an unfit template.
        advice: What to do where it is the template's.
    """

    def __init__(
        self, reason: str, text: str, *, fault: Literal["row", "template", "unclear"] = "row", advice: str = ""
    ) -> None:
        self.reason = reason
        self.text = text
        self.fault = fault
        self.advice = advice

    @property
    def problem(self) -> ChatProblem:
        """The problem, once it is clear whose fault it is."""
        assert self.fault != "unclear"
        return ChatProblem(reason=self.reason, text=self.text, refuses_template=self.fault == "template")


class RenderError(Exception):
    """The template refused a conversation, or cannot cope with it."""


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """What a template makes of turns.

    Attributes:
        text: The text.
        marks: First and last + 1 character of each `{% generation %}` block, in order; empty where there are none.
    """

    text: str
    marks: list[tuple[int, int]]


class TemplateRenderer:
    """Renders turns as transformers does, at a pinned date.

    Args:
        chat_format: The chat template and the special tokens that it may name.
    """

    def __init__(self, chat_format: ChatFormat) -> None:
        self._format = chat_format
        self._prologue = _pinned_clock() if "strftime_now" in chat_format.chat_template else ""

    def check_syntax(self) -> None:
        """Raise ValueError if the template is not valid Jinja; what it makes of turns is not looked at."""
        with contextlib.suppress(RenderError):
            self.render([])

    def render(self, turns: Sequence[Turn], *, generation_prompt: bool = False) -> Rendering:
        """Render turns.

        Args:
            turns: Turns with `role` and `content`; may be none.
            generation_prompt: Whether the assistant's header follows, as before an answer is generated.

        Raises:
            RenderError: If the template refuses the turns or fails on them.
            ValueError: If the template is not valid Jinja.
        """
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        kept = [{name: turn[name] for name in KEPT_TURN_FIELDS if name in turn} for turn in turns]
        try:
            texts, marks = render_jinja_template(
                conversations=[kept],
                chat_template=self._prologue + self._format.chat_template,
                return_assistant_tokens_mask=self._format.mask_method == "generation",
                add_generation_prompt=generation_prompt,
                **self._format.special_tokens,
            )
        except jinja2.TemplateSyntaxError as error:
            line = error.lineno - self._prologue.count("\n")
            raise ValueError(f"the chat template is not valid Jinja: line {line}: {error}") from error
        except jinja2.TemplateError as error:
            raise RenderError(str(error)) from error
        except ImportError:
            raise
        except Exception as error:  # a template is a program: it can divide by zero or recurse without end
            raise RenderError(f"{type(error).__name__}: {error}") from error
        return Rendering(text=texts[0], marks=[tuple(span) for span in marks[0]] if marks else [])


def _pinned_clock() -> str:
    """Jinja that puts a pinned `strftime_now` in front of the one that reads the clock; adds nothing to the text."""
    directives = "".join(f" | replace('{directive}', '{value}')" for directive, value in PINNED_DATE.items())
    # The line break belongs to the macro: with trim_blocks it goes, and the template begins at the start of a line.
    return f"{{% macro strftime_now(format) %}}{{{{ format{directives} }}}}{{% endmacro %}}\n"


def cut(text: str) -> str:
    """Shorten text for a message."""
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
