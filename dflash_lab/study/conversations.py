"""Single turns put together to conversations of several, so that their lengths are as far apart as real ones."""

from __future__ import annotations

import numpy as np

from dflash_lab.data import PreloadedDataset, write_samples
from dflash_lab.data.folders import cache_folder, key_of, load_or_build

# Changes whenever the same turns give other conversations.
_FORMAT = 1
_STORE = "samples.arrow"


def join_turns(turns: PreloadedDataset, *, most_turns: int, max_seq_len: int, seed: int) -> PreloadedDataset:
    """Put samples of one turn together to conversations, each turn in exactly one of them; kept in the cache.

    The number of turns is drawn evenly over its logarithm, so that short conversations are as common as long ones.

    Args:
        turns: Samples of one turn.
        most_turns: Most turns of a conversation, >= 1; 1 gives the samples back, cut and in another order.
        max_seq_len: Conversations are cut to this many tokens, >= 1; those without a supervised token left are left
            out, and the data set's report counts them.
        seed: Of the draws, >= 0.

    Returns:
        The conversations.
    """
    rng = np.random.default_rng((seed, _FORMAT))
    order = rng.permutation(len(turns))
    sizes = np.exp(rng.uniform(0.0, np.log(most_turns + 1), len(turns))).astype(np.int64).clip(1, most_turns)
    ends = np.minimum(np.cumsum(sizes), len(turns))
    num_conversations = int(np.searchsorted(ends, len(turns))) + 1
    begins = np.concatenate([[0], ends[: num_conversations - 1]])
    made_of = key_of([_FORMAT, turns.fingerprint, most_turns, seed])
    place = cache_folder() / "study-conversations" / made_of / turns.fingerprint[:16]

    def build(folder: object) -> None:
        write_samples(
            folder / _STORE,  # type: ignore[operator]
            (_joined(turns, order[begin:end]) for begin, end in zip(begins, ends, strict=False)),
        )

    return load_or_build(
        [place],
        lambda folder: PreloadedDataset.open(folder / _STORE, max_seq_len=max_seq_len),
        build,
        label="conversations of several turns",
    )


def _joined(turns: PreloadedDataset, numbers: np.ndarray) -> dict[str, object]:
    parts = [turns[number] for number in numbers.tolist()]
    return {
        "input_ids": np.concatenate([part.input_ids for part in parts]),
        "loss_mask": np.concatenate([part.loss_mask for part in parts]),
        "source": None,
    }
