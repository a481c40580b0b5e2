"""Samples back as text, to see what the loss mask covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from dflash_lab.data.chat_format import load_tokenizer
from dflash_lab.data.corpus import builtin_tokenizer
from dflash_lab.data.dataset import PreloadedDataset, Sample
from dflash_lab.data.inputs import LengthInput

# Ids of a span that has no tokenizer to decode it, shown from its start.
_SHOWN_IDS = 24


@dataclass(frozen=True)
class TextSpan:
    """A stretch of a sample under one mask value.

    Args:
        text: Its tokens decoded together; their ids where there is no tokenizer.
        supervised: Whether the loss mask covers it.
        num_tokens: How many tokens it has.
    """

    text: str
    supervised: bool
    num_tokens: int


class TokenText:
    """Decodes the tokens of a data set, or shows their ids where no tokenizer is known.

    Args:
        tokenizer: A `tokenizers.Tokenizer`, or None.
    """

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = None if tokenizer is None else tokenizer.get_vocab_size(with_added_tokens=True)

    @classmethod
    def of(cls, samples: LengthInput, tokenizer: str = "") -> TokenText:
        """Choose the tokenizer that samples were made with.

        Args:
            samples: From `open_lengths`.
            tokenizer: A folder or tokenizer.json; empty means the built-in one for chats and the built-in corpus, and
                none for samples that were tokens already.

        Raises:
            ValueError: If the tokenizer cannot be read, or an id of the samples is past its vocabulary.
        """
        if not tokenizer and samples.chats is None:
            return cls(None)
        loaded = load_tokenizer(tokenizer) if tokenizer else builtin_tokenizer()
        text = cls(loaded.backend_tokenizer)
        assert samples.dataset is not None
        if samples.dataset.max_id >= text.vocab_size:
            raise ValueError(
                f"{samples.name} has the id {samples.dataset.max_id}, past the {text.vocab_size} entries of tokenizer "
                f"{tokenizer or 'built-in'}; name the tokenizer that the samples were made with"
            )
        return text

    def decode(self, ids: Iterable[int]) -> str:
        """Give the text of ids decoded together, control tokens included."""
        numbers = [int(token_id) for token_id in ids]
        if self._tokenizer is None:
            more = f" ... ({len(numbers)} ids)" if len(numbers) > _SHOWN_IDS else ""
            return " ".join(map(str, numbers[:_SHOWN_IDS])) + more
        return self._tokenizer.decode(numbers, skip_special_tokens=False)

    def spans(self, sample: Sample) -> list[TextSpan]:
        """Cut a sample where its mask changes."""
        edges = [0, *(np.flatnonzero(np.diff(sample.loss_mask)) + 1).tolist(), len(sample.input_ids)]
        return [
            TextSpan(self.decode(sample.input_ids[begin:end]), bool(sample.loss_mask[begin]), end - begin)
            for begin, end in zip(edges, edges[1:], strict=False)
            if end > begin
        ]

    def mask_edges(self, dataset: PreloadedDataset, *, num_samples: int = 1_000, seed: int = 0) -> pl.DataFrame:
        """Count the tokens around the edges of supervised spans: a mask that is right begins and ends alike everywhere.

        Args:
            dataset: The samples.
            num_samples: How many to look at, drawn by the seed; all if there are fewer.
            seed: For the draw, >= 0.

        Returns:
            One row an edge and token, most frequent first: edge ("before", the last token that is not supervised;
            "last", the last one that is), token_id (null at the start of a sample), token, num_spans, share_of_spans.
        """
        drawn = np.random.default_rng(seed).permutation(len(dataset))[:num_samples]
        counts: dict[str, Counter[int | None]] = {"before": Counter(), "last": Counter()}
        for number in np.sort(drawn).tolist():
            sample = dataset[number]
            steps = np.diff(np.concatenate([[False], sample.loss_mask, [False]]).astype(np.int8))
            for begin, end in zip(np.flatnonzero(steps == 1), np.flatnonzero(steps == -1), strict=True):
                counts["before"][int(sample.input_ids[begin - 1]) if begin else None] += 1
                counts["last"][int(sample.input_ids[end - 1])] += 1
        rows = [
            (
                edge,
                token_id,
                "start of sample" if token_id is None else repr(self.decode([token_id])),
                number,
                number / sum(found.values()),
            )
            for edge, found in counts.items()
            for token_id, number in found.most_common()
        ]
        schema = {
            "edge": pl.String,
            "token_id": pl.Int64,
            "token": pl.String,
            "num_spans": pl.Int64,
            "share_of_spans": pl.Float64,
        }
        return pl.DataFrame(rows, schema=schema, orient="row")
