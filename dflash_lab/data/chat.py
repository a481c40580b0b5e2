"""Conversations in chat JSONL, a tokenizer and a chat template -> a token store."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from dflash_lab.data.chat_format import ChatFormat
from dflash_lab.data.chat_mask import ChatEncoder, EncodedChat
from dflash_lab.data.chat_render import ChatProblem, TemplateRenderer, Turn
from dflash_lab.data.chat_rows import ChatLine
from dflash_lab.data.lines import iter_json_lines
from dflash_lab.data.paths import user_path
from dflash_lab.data.progress import ReadingProgress
from dflash_lab.data.store import write_samples

SHOWN_ROWS = 10
# Batches per worker that are read ahead: enough to keep workers busy over uneven batches, few enough to bound memory.
BATCHES_AHEAD = 3


@dataclass(frozen=True, kw_only=True)
class TokenizeReport:
    """What became of a chat file.

    Attributes:
        source: The file that was read.
        out: The store that was written.
        mask_method: "generation" (marks in the template) or "prefix" (compared renderings).
        num_read: Conversations read, the bad ones included.
        num_written: Conversations in the store.
        num_tokens: Tokens in the store.
        num_loss_tokens: Tokens under the loss mask.
        num_altered_turns: Masked turns that the template did not render word for word, such as answers whose thinking
            it left out.
        num_open_turns: Masked turns that do not end in a control token, so that nothing teaches the model to stop.
        left_out: Reason -> row numbers from 0 (blank lines not counted).
    """

    source: Path
    out: Path
    mask_method: Literal["generation", "prefix"]
    num_read: int
    num_written: int
    num_tokens: int
    num_loss_tokens: int
    num_altered_turns: int
    num_open_turns: int
    left_out: dict[str, list[int]]


def tokenize_conversations(
    path: str | os.PathLike[str],
    tokenizer: Any,
    out: str | os.PathLike[str],
    *,
    chat_template: str | Path | None = None,
    turns: Literal["all", "last"] = "all",
    num_workers: int = 0,
    batch_size: int = 64,
    on_bad_row: Literal["error", "skip"] = "error",
    max_conversations: int | None = None,
) -> TokenizeReport:
    """Turn a chat JSONL file into a store of token ids and loss masks.

    A line is an object with `messages` or `conversations`, a list of turns with `role` (or `from`: system, user,
    assistant, human, gpt) and `content` (or `value`: text), and optionally `system` (text of a first system turn), `id`
    and `source`. Other fields are not read, except `reasoning_content` of a turn, which goes to the template.

    The mask holds the assistant's tokens up to and with the token that ends the turn; see `chat_mask` for how. A
    template for which the mask cannot be exact is refused whatever `on_bad_row` says; a conversation that does not suit
    a fit template (two answers in a row, an assistant who begins) is a bad row. So is text that holds one of the
    tokenizer's control tokens (a user who typed `<|im_end|>`): read as a control token it would forge a turn, read as
    text it would be what no serving stack shows the model. A template that asks for today's date is told 26 July 2024,
    so that the tokens are the same on any day.

    With workers the calling script needs the usual `if __name__ == "__main__":`, since they start by spawn.

    Args:
        path: The file; .gz and .zst are read as they are.
        tokenizer: A fast Hugging Face tokenizer, a folder that holds one, or a tokenizer.json file.
        out: Where the store goes, .arrow or .parquet; written aside and renamed whole.
        chat_template: Jinja text or a file; None takes the tokenizer's own.
        turns: Which assistant turns are under the mask: "all" or the "last" one of each conversation.
        num_workers: Processes, >= 0; 0 works in this one. The store is the same for every number.
        batch_size: Conversations a worker takes at a time, >= 1.
        on_bad_row: "error" raises at the first bad line, "skip" leaves bad lines out and counts them.
        max_conversations: Lines to read at most, >= 1; None reads all.

    Returns:
        Counts, and which rows were left out and why.

    Raises:
        ValueError: If a setting, the template or (by default) a line is not legal, naming file, physical line, field
            and value; or if no conversation is left.
    """
    _check_choice("turns", turns, ("all", "last"))
    _check_choice("on_bad_row", on_bad_row, ("error", "skip"))
    _check_at_least("num_workers", num_workers, 0)
    _check_at_least("batch_size", batch_size, 1)
    if max_conversations is not None:
        _check_at_least("max_conversations", max_conversations, 1)
    path, out = user_path(path), user_path(out, name="out")
    if not path.is_file():
        raise ValueError(f"{path} is not a file; legal: a chat JSONL file")
    chat_format = ChatFormat.load(tokenizer, chat_template)
    # Here, since a worker that fails as it starts says only that it is gone.
    TemplateRenderer(chat_format).check_syntax()
    tally = _Tally(path=path, skip=on_bad_row == "skip")
    items = _batches(map(ChatLine.read, islice(iter_json_lines(path), max_conversations)), batch_size)
    if num_workers == 0:
        batches = _encode_here(items, ChatEncoder(chat_format, turns=turns))
    else:
        batches = _encode_in_processes(items, chat_format, turns, num_workers)
    try:
        num_written = write_samples(out, tally.rows(batches))
    finally:
        batches.close()
    return TokenizeReport(
        source=path,
        out=out,
        mask_method=chat_format.mask_method,
        num_read=tally.num_read,
        num_written=num_written,
        num_tokens=tally.num_tokens,
        num_loss_tokens=tally.num_loss_tokens,
        num_altered_turns=tally.num_altered_turns,
        num_open_turns=tally.num_open_turns,
        left_out=tally.left_out,
    )


Encoded = list[tuple[ChatLine, EncodedChat | ChatProblem]]


def _batches(items: Iterator[ChatLine], batch_size: int) -> Iterator[list[ChatLine]]:
    while batch := list(islice(items, batch_size)):
        yield batch


def _encode_here(batches: Iterator[list[ChatLine]], encoder: ChatEncoder) -> Iterator[Encoded]:
    for batch in batches:
        yield _join(batch, encoder.encode(_turns_of(batch)))


def _encode_in_processes(
    batches: Iterator[list[ChatLine]], chat_format: ChatFormat, turns: Literal["all", "last"], num_workers: int
) -> Iterator[Encoded]:
    pool = ProcessPoolExecutor(
        num_workers,
        # Forking would copy locks that the tokenizer's and Arrow's threads hold.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(chat_format, turns),
    )
    waiting: deque[tuple[list[ChatLine], Future[list[EncodedChat | ChatProblem]]]] = deque()
    try:
        for batch in batches:
            waiting.append((batch, pool.submit(_encode_in_worker, _turns_of(batch))))
            if len(waiting) >= BATCHES_AHEAD * num_workers:
                done, future = waiting.popleft()
                yield _join(done, future.result())
        while waiting:
            done, future = waiting.popleft()
            yield _join(done, future.result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_worker_encoder: ChatEncoder | None = None


def _start_worker(chat_format: ChatFormat, turns: Literal["all", "last"]) -> None:
    global _worker_encoder
    # One process is one thread here; the tokenizer would otherwise start one per core in each of them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_encoder = ChatEncoder(chat_format, turns=turns)


def _encode_in_worker(chats: list[list[Turn]]) -> list[EncodedChat | ChatProblem]:
    assert _worker_encoder is not None
    return _worker_encoder.encode(chats)


def _turns_of(batch: list[ChatLine]) -> list[list[Turn]]:
    return [item.turns for item in batch if item.turns is not None]


def _join(batch: list[ChatLine], results: list[EncodedChat | ChatProblem]) -> Encoded:
    """Put results and the problems found while reading into one order, so that the first bad line is the one named."""
    rest = iter(results)
    return [(item, item.problem if item.problem is not None else next(rest)) for item in batch]


@dataclass(kw_only=True)
class _Tally:
    """Counts what passes on its way to the store."""

    path: Path
    skip: bool
    num_read: int = 0
    num_tokens: int = 0
    num_loss_tokens: int = 0
    num_altered_turns: int = 0
    num_open_turns: int = 0
    left_out: dict[str, list[int]] = field(default_factory=dict)

    def rows(self, batches: Iterator[Encoded]) -> Iterator[dict[str, object]]:
        progress = ReadingProgress(f"and tokenizing {self.path.name}")
        for batch in batches:
            for item, result in batch:
                self.num_read += 1
                if isinstance(result, ChatProblem):
                    self._leave_out(item, result)
                    continue
                self.num_tokens += len(result.input_ids)
                self.num_loss_tokens += int(result.loss_mask.sum())
                self.num_altered_turns += result.num_altered_turns
                self.num_open_turns += result.num_open_turns
                yield {
                    "input_ids": result.input_ids,
                    "loss_mask": result.loss_mask,
                    "source": item.source,
                    "id": item.row_id,
                }
            progress.update(batch[-1][0].line.share_read, self.num_read)
        progress.done(self.num_read)
        num_left_out = sum(map(len, self.left_out.values()))
        if num_left_out == self.num_read:
            reasons = "; ".join(f"{reason}: {_some_rows(rows)}" for reason, rows in self.left_out.items())
            raise ValueError(f"{self.path}: no conversation is left of {self.num_read}: {reasons}")

    def _leave_out(self, item: ChatLine, problem: ChatProblem) -> None:
        if problem.refuses_template:
            raise ValueError(
                f"the chat template gives no exact loss mask ({problem.reason}): {self.path}, line "
                f"{item.line.line_number}: {problem.text}"
            )
        if not self.skip:
            raise ValueError(f"{self.path}, line {item.line.line_number}: {problem.text}")
        self.left_out.setdefault(problem.reason, []).append(item.line.row_number)


def _some_rows(rows: list[int]) -> str:
    more = ", ..." if len(rows) > SHOWN_ROWS else ""
    return f"{len(rows)} (rows {', '.join(map(str, rows[:SHOWN_ROWS]))}{more})"


def _check_choice(name: str, value: object, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ValueError(f"{name} is {value!r}; legal: {', '.join(legal)}")


def _check_at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; legal: whole numbers >= {least}")
