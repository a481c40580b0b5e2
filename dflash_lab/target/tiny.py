"""TinyTarget: a real, if small, language model that anyone has after two minutes, without a download."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_lab.data.corpus import VOCAB_SIZE, builtin_corpus
from dflash_lab.data.folders import cache_folder, key_of, load_or_build
from dflash_lab.data.paths import user_path
from dflash_lab.target.hf import TransformersTarget
from dflash_lab.target.tiny_training import TinyReport, TinySettings, train_tiny

# Steps of the default: about 2 minutes on 2 cores.
DEFAULT_STEPS = 500
TARGET_LAYER_IDS = (0, 1, 2)
REPORT_NAME = "report.json"
# Changes whenever the same settings give other weights.
_FORMAT = 1


class TinyTarget(TransformersTarget):
    """A Qwen3 of 4 layers, width 192 and 2 million parameters that has read the built-in corpus; layers 0, 1, 2 tapped.

    Its tokenizer is `data.builtin_tokenizer()`.

    Args:
        model: The trained model.
        report: How its training went.

    Attributes:
        report: How its training went.
    """

    def __init__(self, model: Any, *, report: TinyReport) -> None:
        super().__init__(model, target_layer_ids=TARGET_LAYER_IDS, name=f"TinyTarget-{report.steps}-{report.seed}")
        self.report = report

    @classmethod
    def load_or_train(
        cls, *, steps: int = DEFAULT_STEPS, seed: int = 0, cache: str | Path | None = None, progress: bool = True
    ) -> TinyTarget:
        """Load it from the cache, trained first where it has not been.

        The weights follow from corpus, steps and seed: on one machine, with one number of torch threads, to the bit.

        Args:
            steps: Optimizer steps of 4 x 256 tokens, >= 1.
            seed: Of first weights and reading order, >= 0.
            cache: Folder to keep it in; None takes DFLASH_LAB_CACHE or the user's cache folder.
            progress: Say on standard error how far the training is.

        Returns:
            The target, on the CPU, in float32.

        Raises:
            ValueError: If an argument is out of range.
        """
        settings = TinySettings(steps=steps, seed=seed)
        corpus = builtin_corpus(form="single_turn")
        base = (cache_folder() if cache is None else user_path(cache, name="cache")) / "tiny-target"
        state = key_of([_FORMAT, corpus.fingerprint, asdict(settings)])

        def build(folder: Path) -> None:
            model, report = train_tiny(corpus, settings, vocab_size=VOCAB_SIZE, progress=progress)
            with _no_bars():
                model.save_pretrained(folder)
            (folder / REPORT_NAME).write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")

        return load_or_build([base / f"steps{steps}-seed{seed}" / state], cls._load, build, label="TinyTarget")

    @classmethod
    def _load(cls, folder: Path) -> TinyTarget:
        from transformers import Qwen3ForCausalLM

        report = TinyReport(**json.loads((folder / REPORT_NAME).read_text(encoding="utf-8")))
        with _no_bars():
            model = Qwen3ForCausalLM.from_pretrained(folder, local_files_only=True)
        return cls(model, report=report)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep transformers from drawing bars for what takes a tenth of a second."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
