"""What a server would stumble over, or swallow without a word, in an exported drafter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from dflash_lab.drafter.config import DrafterConfig
from dflash_lab.drafter.export import EMBEDDING, HEAD, TARGET_TENSORS
from dflash_lab.drafter.export_fields import ARCHITECTURE, read_fields
from dflash_lab.drafter.export_tensors import (
    CONFIG_FILE,
    StoredTensor,
    expected_shapes,
    read_json,
    read_tensors,
    stored_tensors,
)
from dflash_lab.drafter.field_reader import ExportFinding
from dflash_lab.drafter.verifying import VerifyingTarget, disagreements

_DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
# Rows of the embedding that are compared with the target's.
_ROWS_COMPARED = 64


def lint_export(path: str | os.PathLike[str], target: VerifyingTarget | None = None) -> tuple[ExportFinding, ...]:
    """Check an exported drafter of either format before it leaves.

    Servers check little: weights that are missing, a wrong rotary base and norms that never trained all load without an
    error and only draft badly. Whatever is wrong inside the folder becomes a finding, also damaged files; an export
    with no finding of severity "error" is fit to serve.

    Args:
        path: Its folder.
        target: The target that it will serve with, for what has to agree: rotary base, depth, taps, width, vocabulary.

    Returns:
        Findings, errors first; empty if there are none.

    Raises:
        ValueError: If there is no such folder.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; legal: one with {CONFIG_FILE} and weights")
    report = _Report()
    try:
        fields = read_json(folder / CONFIG_FILE)
    except ValueError as error:
        report.add_raised(error)
        return report.findings()
    read = read_fields(fields, num_target_layers=_depth_to_assume(fields, target))
    report.found.extend(read.findings)
    for name in read.unknown_fields:
        report.add("note", f"{name} is a field that is not known here", "left alone; see that the server needs it")
    if read.format == "z-lab":
        _lint_z_lab(fields, report)
    else:
        _lint_speculators(fields, report)
    try:
        tensors = stored_tensors(folder)
    except ValueError as error:
        report.add_raised(error)
        return report.findings()
    if read.config is not None:
        _lint_special_ids(fields, read.config, report)
        _lint_names(tensors, read.config, read.format, report)
        if target is not None:
            for name, (own, legal) in disagreements(read.config, target).items():
                report.add("error", f"{name} is {own}", f"{legal}, as in {target.name}")
    _lint_dtypes(tensors, read.dtype, report)
    _lint_values(tensors, report)
    if target is not None and EMBEDDING in tensors:
        _lint_embedding(tensors[EMBEDDING], target, report)
    if target is not None and HEAD in tensors:
        _lint_head(tensors[HEAD], target, report)
    return report.findings()


def _depth_to_assume(fields: dict[str, Any], target: VerifyingTarget | None) -> int | None:
    """Give the target's depth where the layout has no place for it, or else the least that its taps need."""
    if "speculators_model_type" not in fields:
        return None
    if target is not None:
        return target.num_layers
    ids = fields.get("aux_hidden_state_layer_ids")
    numbers = [each for each in ids if isinstance(each, int)] if isinstance(ids, list) else []
    return max(numbers, default=1)


class _Report:
    def __init__(self) -> None:
        self.found: list[ExportFinding] = []

    def add(self, severity: str, what: str, legal: str) -> None:
        self.found.append(ExportFinding(severity=severity, what=what, legal=legal))

    def add_raised(self, error: ValueError) -> None:
        what, _, legal = str(error).partition("; legal: ")
        self.add("error", what, legal)

    def findings(self) -> tuple[ExportFinding, ...]:
        order = ("error", "warning", "note")
        return tuple(sorted(self.found, key=lambda finding: order.index(finding.severity)))


def _lint_z_lab(fields: dict[str, Any], report: _Report) -> None:
    _lint_equal(fields, "architectures", [ARCHITECTURE], report)
    _lint_equal(fields, "model_type", "qwen3", report)
    if fields.get("tie_word_embeddings") is not False:
        # There is neither embedding nor head to tie.
        report.add("warning", f"tie_word_embeddings is {fields.get('tie_word_embeddings')!r}", "False")
    if "block_size" not in fields and isinstance(fields.get("dflash_config"), dict):
        report.add("warning", "block_size stands in dflash_config only", "at top level, where all servers look")
    _lint_rope_place(fields, "", report)


def _lint_speculators(fields: dict[str, Any], report: _Report) -> None:
    _lint_equal(fields, "architectures", [ARCHITECTURE], report)
    decoder = fields.get("transformer_layer_config")
    if isinstance(decoder, dict):
        _lint_rope_place(decoder, "transformer_layer_config.", report)
    inner = fields.get("speculators_config")
    if not isinstance(inner, dict):
        report.add("error", "speculators_config is missing", "an object with algorithm, proposal_methods and verifier")
        return
    _lint_equal(inner, "algorithm", "dflash", report, "speculators_config.")
    methods = inner.get("proposal_methods")
    method = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    tokens, block_size = method.get("speculative_tokens"), fields.get("block_size")
    if isinstance(block_size, int) and tokens != block_size - 1:
        report.add("error", f"speculative_tokens is {tokens!r}", f"{block_size - 1}, block_size - 1")
    if method.get("proposal_type") != inner.get("default_proposal_method"):
        what = f"default_proposal_method is {inner.get('default_proposal_method')!r}"
        report.add("error", what, f"the proposal_type of a method, {method.get('proposal_type')!r}")
    verifier = inner.get("verifier")
    if not isinstance(verifier, dict) or not verifier.get("name_or_path") or not verifier.get("architectures"):
        report.add("error", f"verifier is {verifier!r}", "name_or_path and architectures of the target")


def _lint_equal(fields: dict[str, Any], name: str, legal: object, report: _Report, place: str = "") -> None:
    if fields.get(name) != legal:
        report.add("error", f"{place}{name} is {fields.get(name)!r}", repr(legal))


def _lint_rope_place(fields: dict[str, Any], place: str, report: _Report) -> None:
    if "rope_theta" not in fields:
        report.add(
            "error",
            f"{place}rope_theta is missing at top level",
            "also there: loaders that do not know rope_parameters take 10,000 without a word",
        )


def _lint_special_ids(fields: dict[str, Any], config: DrafterConfig, report: _Report) -> None:
    for name in ("pad_token_id", "eos_token_id", "bos_token_id"):
        ids = fields.get(name)
        if config.mask_token_id in (ids if isinstance(ids, list) else [ids]):
            report.add("error", f"mask_token_id is {config.mask_token_id}, the {name}", "an id that no text holds")


def _lint_names(tensors: dict[str, StoredTensor], config: DrafterConfig, format: str, report: _Report) -> None:
    shapes = expected_shapes(config)
    if format == "speculators":
        matrix = (config.vocab_size, config.hidden_size)
        shapes |= {EMBEDDING: matrix, HEAD: matrix}
    for name, shape in shapes.items():
        if name not in tensors:
            report.add("error", f"{name} is missing", f"a tensor of the shape {shape}")
        elif tensors[name].shape != shape:
            report.add("error", f"{name} has the shape {tensors[name].shape}", str(shape))
    for name in sorted(tensors.keys() - shapes.keys()):
        severity = "warning" if name in TARGET_TENSORS else "error"
        report.add(severity, f"{name} is no tensor of this format", "the drafter's own tensors only")


def _lint_dtypes(tensors: dict[str, StoredTensor], named: str | None, report: _Report) -> None:
    dtypes = sorted({_DTYPE_NAMES.get(each.dtype, each.dtype) for each in tensors.values()})
    if len(dtypes) > 1:
        report.add("error", f"weights are of {', '.join(dtypes)}", "one dtype")
    if named is None:
        report.add("warning", "dtype is missing", f"{' or '.join(dtypes)}, as the weights are")
    elif [named] != dtypes:
        report.add("error", f"dtype is {named!r}, and the weights are of {', '.join(dtypes)}", "the same")


def _lint_values(tensors: dict[str, StoredTensor], report: _Report) -> None:
    norms = {}
    for name, stored in sorted(tensors.items()):
        # One at a time: an embedding can be larger than all the rest.
        tensor = read_tensors({name: stored})[name]
        if not tensor.is_floating_point():
            report.add("error", f"{name} is {stored.dtype}", "a floating-point type")
        elif not bool(tensor.isfinite().all()):
            report.add("error", f"{name} has NaN or infinite numbers", "finite numbers")
        elif name not in TARGET_TENSORS and not bool(tensor.any()):
            report.add("error", f"every number of {name} is 0", "weights that have trained")
        if name.endswith("norm.weight") and name not in TARGET_TENSORS:
            norms[name] = tensor
    if norms and all(bool((tensor == 1).all()) for tensor in norms.values()):
        report.add(
            "error",
            f"all {len(norms)} norms are exactly 1.0",
            "norms that have trained: in bfloat16 a step is too small to move them from 1.0",
        )


def _lint_embedding(stored: StoredTensor, target: VerifyingTarget, report: _Report) -> None:
    num_rows = min(_ROWS_COMPARED, target.vocab_size)
    if len(stored.shape) != 2 or stored.shape[0] < num_rows or stored.shape[1] != target.hidden_size:
        return
    rows = read_tensors({stored.name: stored})[stored.name][:num_rows].float()  # (n, H)
    with torch.no_grad():
        legal = target.embed(torch.arange(num_rows, device=target.device)).float().cpu()  # (n, H)
    # bfloat16 keeps 8 binary digits.
    if not torch.allclose(rows, legal, rtol=2**-7, atol=1e-6):
        report.add("error", f"{stored.name} differs from {target.name}'s embedding", "what the target embeds")


def _lint_head(stored: StoredTensor, target: VerifyingTarget, report: _Report) -> None:
    if stored.shape != (target.vocab_size, target.hidden_size):
        return
    head = read_tensors({stored.name: stored})[stored.name].float()  # (V, H)
    states = torch.randn(4, target.hidden_size, generator=torch.Generator().manual_seed(0))  # (4, H)
    with torch.no_grad():
        legal = target.lm_head(states.to(target.device, target.dtype)).float().cpu()  # (4, V)
    mine = states @ head.T
    # Scales and soft caps of the target's head keep the order of its logits; rounding to bfloat16 moves them little.
    alike = torch.nn.functional.cosine_similarity(mine, legal, dim=-1)
    if not bool((alike > 0.98).all()):
        report.add("error", f"{stored.name} differs from {target.name}'s head", "the target's head")
