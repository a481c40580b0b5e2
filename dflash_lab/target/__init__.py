"""Target: a batch in, target features out: the frozen language model that a drafter learns from.

Any causal LM of transformers becomes a target by `TransformersTarget(model)`. `TinyTarget.load_or_train()` is one that
needs no download, `smollm2_target()` a real chat model. `TargetForwardLoops` runs targets over prefetched batches, each
in a thread of its own. A drafter learns from what its target writes: `tiny_corpus` and `answer_corpus` let it write.
"""

from dflash_lab.target.answer_store import AnswerCorpus, AnswerFigures, AnswerSettings, answer_corpus, tiny_corpus
from dflash_lab.target.answers import WrittenAnswers, write_answers
from dflash_lab.target.architecture import default_target_layer_ids
from dflash_lab.target.hf import TransformersTarget
from dflash_lab.target.loop import BatchSource, TargetForwardLoop, TargetForwardLoops
from dflash_lab.target.named import NamedTarget, open_target, unused_id
from dflash_lab.target.protocol import TargetCache, TargetFeatures, TargetModel, TargetStep
from dflash_lab.target.smollm2 import smollm2_target, smollm2_tokenizer
from dflash_lab.target.tiny import TinyTarget
from dflash_lab.target.tiny_training import TinyReport

__all__ = [
    "AnswerCorpus",
    "AnswerFigures",
    "AnswerSettings",
    "BatchSource",
    "NamedTarget",
    "TargetCache",
    "TargetFeatures",
    "TargetForwardLoop",
    "TargetForwardLoops",
    "TargetModel",
    "TargetStep",
    "TinyReport",
    "TinyTarget",
    "TransformersTarget",
    "WrittenAnswers",
    "answer_corpus",
    "default_target_layer_ids",
    "open_target",
    "smollm2_target",
    "smollm2_tokenizer",
    "tiny_corpus",
    "unused_id",
    "write_answers",
]
