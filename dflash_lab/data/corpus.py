"""The built-in corpus: Python's standard library as chats, with a tokenizer of its own. Real text, no network.

Every documented function is a pair of turns: the user names it and gives its signature and docstring, the assistant
answers with its code. Everything is built on first use into the cache folder and found there afterwards. Totals move
with the Python release; `PreloadedDataset.fingerprint` says which corpus a figure was made from.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dflash_lab.data import corpus_source
from dflash_lab.data.chat import tokenize_conversations
from dflash_lab.data.corpus_source import DocumentedFunction, documented_functions, help_topics
from dflash_lab.data.dataset import PreloadedDataset
from dflash_lab.data.folders import build_folder, cache_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Form = Literal["by_module", "single_turn", "topics"]
FORMS = ("by_module", "single_turn", "topics")

# Most pairs a conversation, by module. Under the built-in tokenizer 10 gives mean 1,970 and median 1,720 tokens (16
# pairs: 2,650 and 2,310), next to the source run's 2,080 and 1,367, with every length bucket filled.
MAX_PAIRS = 10
VOCAB_SIZE = 2_048
PAD, MASK, TURN_START, TURN_END = "<|pad|>", "<|mask|>", "<|im_start|>", "<|im_end|>"
# How Qwen3's tokenizer splits text: single digits, and a line break apart from the indentation after it.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else -%}
{{ message['content'] + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def builtin_corpus(
    *, form: Form = "by_module", max_seq_len: int | None = None, min_loss_tokens: int = 1
) -> PreloadedDataset:
    """Open the built-in corpus as tokens, built first where it has not been.

    Args:
        form: "by_module" (conversations of up to 10 functions of a module, spread over the source run's lengths),
            "single_turn" (one function each, mean about 260 tokens) or "topics" (the help texts of the language, few
            and long).
        max_seq_len: Longer samples are cut, >= 1; None keeps them whole.
        min_loss_tokens: Samples with fewer supervised tokens after the cut are left out.

    Returns:
        The data set; `sources` are top-level modules.

    Raises:
        ValueError: If `form` is another one, or this Python comes without its sources.
    """
    folder = _build_once(f"corpus-{_checked(form)}", lambda folder: _write_corpus(folder, form))
    return PreloadedDataset.open(
        folder / "samples.arrow", max_seq_len=max_seq_len, vocab_size=VOCAB_SIZE, min_loss_tokens=min_loss_tokens
    )


def builtin_conversations(form: Form = "by_module") -> Iterator[dict[str, object]]:
    """Give the built-in corpus as conversations, in a fixed order.

    Args:
        form: As for `builtin_corpus`.

    Returns:
        Rows of `id`, `source` (top-level module, or "topics") and `messages`: turns with `role` and `content`.

    Raises:
        ValueError: If `form` is another one, or this Python comes without its sources.
    """
    if _checked(form) == "topics":
        return _topic_conversations()
    return _function_conversations(MAX_PAIRS if form == "by_module" else 1)


def write_builtin_conversations(path: str | os.PathLike[str], *, form: Form = "by_module") -> int:
    """Write the built-in corpus as chat JSONL, for `tokenize_conversations`.

    Args:
        path: The file; written aside and renamed whole.
        form: As for `builtin_corpus`.

    Returns:
        Number of conversations.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    num_rows = 0
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            for row in builtin_conversations(form):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                num_rows += 1
        # mkstemp makes files that only their owner can read.
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    finally:
        Path(aside).unlink(missing_ok=True)
    return num_rows


def builtin_tokenizer() -> PreTrainedTokenizerFast:
    """Load the built-in corpus's tokenizer, trained first where it has not been.

    Returns:
        A byte-level BPE of 2,048 entries: 0 pads, 1 is the drafter's mask, 2 and 3 start and end a turn (ChatML, with
        `{% generation %}` marks). Text round trips exactly.
    """
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(_tokenizer_folder()), local_files_only=True)


def _function_conversations(max_pairs: int) -> Iterator[dict[str, object]]:
    for module, functions in groupby(_functions(), key=lambda function: function.module):
        number = 0
        while part := list(islice(functions, max_pairs)):
            yield {
                "id": f"{module}.{part[0].name}" if max_pairs == 1 else f"{module}/{number}",
                "source": module.partition(".")[0],
                "messages": [turn for function in part for turn in _pair(function)],
            }
            number += 1


def _functions() -> Iterator[DocumentedFunction]:
    """The functions out of the cache, since to parse the whole library takes seconds."""
    folder = _build_once("functions", _write_functions)
    with (folder / "functions.jsonl").open(encoding="utf-8") as file:
        for line in file:
            yield DocumentedFunction(**json.loads(line))


def _write_functions(folder: Path) -> None:
    with (folder / "functions.jsonl").open("w", encoding="utf-8") as file:
        for function in documented_functions():
            file.write(json.dumps(asdict(function)) + "\n")


def _pair(function: DocumentedFunction) -> list[dict[str, str]]:
    question = (
        f"Write `{function.name}` for the Python module `{function.module}`.\n\n"
        f"```python\n{function.signature}\n```\n\n{function.docstring}"
    )
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": f"```python\n{function.code}\n```"},
    ]


def _topic_conversations() -> Iterator[dict[str, object]]:
    for name, text in help_topics().items():
        yield {
            "id": f"topics/{name}",
            "source": "topics",
            "messages": [
                {"role": "user", "content": f"Explain the topic `{name}` of the Python language."},
                {"role": "assistant", "content": text.strip()},
            ],
        }


def _write_corpus(folder: Path, form: Form) -> None:
    conversations = folder / "conversations.jsonl"
    write_builtin_conversations(conversations, form=form)
    tokenize_conversations(conversations, _tokenizer_folder(), folder / "samples.arrow")
    conversations.unlink()


def _tokenizer_folder() -> Path:
    return _build_once("tokenizer", _write_tokenizer)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, MASK, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (turn["content"] for row in _function_conversations(1) for turn in row["messages"])
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        mask_token=MASK,
        eos_token=TURN_END,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(str(folder))


def _build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Give the folder `name` of what `build` writes, built where it is missing."""
    folder = cache_folder() / "builtin" / f"{name}-{_builder_key()}"
    if not folder.is_dir():
        build_folder(folder, build)
    return folder


def _builder_key() -> str:
    """Name what the built files depend on: Python and its sources, tokenizers, and the builder's own settings."""
    builder = b"".join(Path(module).read_bytes() for module in (__file__, corpus_source.__file__))
    parts = (sys.version, version("tokenizers"), sha256(builder).hexdigest())
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _checked(form: str) -> str:
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; legal: {', '.join(FORMS)}")
    return form
