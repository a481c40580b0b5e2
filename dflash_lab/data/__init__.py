"""Samples and their lengths: any token file becomes a memory-mapped data set whose lengths are at hand.

`PreloadedDataset.open` reads what people have; `tokenize_conversations` makes token stores of chats; the built-in
corpus and the source run's length profile need no files at all. `open_lengths` chooses among them by the parameters
of a notebook.
"""

from dflash_lab.data.chat import TokenizeReport, tokenize_conversations
from dflash_lab.data.chat_text import TextSpan, TokenText
from dflash_lab.data.corpus import (
    builtin_conversations,
    builtin_corpus,
    builtin_tokenizer,
    write_builtin_conversations,
)
from dflash_lab.data.dataset import PreloadedDataset, Sample
from dflash_lab.data.inputs import LengthInput, is_chat_file, open_lengths, save_prepared
from dflash_lab.data.profile import SOURCE_RUN_NUM_SAMPLES, source_run_lengths
from dflash_lab.data.report import DataReport
from dflash_lab.data.store import write_samples

__all__ = [
    "SOURCE_RUN_NUM_SAMPLES",
    "DataReport",
    "LengthInput",
    "PreloadedDataset",
    "Sample",
    "TextSpan",
    "TokenText",
    "TokenizeReport",
    "builtin_conversations",
    "builtin_corpus",
    "builtin_tokenizer",
    "is_chat_file",
    "open_lengths",
    "save_prepared",
    "source_run_lengths",
    "tokenize_conversations",
    "write_builtin_conversations",
    "write_samples",
]
