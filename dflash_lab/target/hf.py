"""Any loaded Hugging Face causal LM as a target."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn

from dflash_lab.feed.batch import Batch
from dflash_lab.target.architecture import (
    checked_target_layer_ids,
    control_ids_of,
    decoder_of,
    default_target_layer_ids,
    embedding_scale_of,
    layers_of,
    max_positions_of,
    rope_theta_of,
    settings_of,
    text_config,
    transformed_logits,
    windows_of,
)
from dflash_lab.target.kv_cache import KeyValueCache
from dflash_lab.target.locks import model_lock
from dflash_lab.target.masks import additive, extension_mask, packed_mask
from dflash_lab.target.probe import check_embed_and_head
from dflash_lab.target.protocol import TargetFeatures, TargetStep
from dflash_lab.target.weights import copy_to_device, weights_fingerprint

# Implementations of attention that take any mask.
_MASKED_ATTENTION = ("sdpa", "eager")
# Logits that are in the making at one time, so that casts and soft caps need no second copy of all of them.
_LOGITS_AT_ONCE = 1 << 24


class _LastTapReached(Exception):
    """Ends a forward pass whose rest nobody needs."""


class TransformersTarget:
    """A frozen causal LM from transformers, tapped by hooks that stand only while it runs.

    The model is put into eval mode and its parameters are frozen, and both stay so. It runs in its own dtype, under
    inference mode. A forward pass ends at the last tapped layer unless logits are asked for. Calls from several threads
    run one after the other, since they would share hooks.

    Right padding gets no mask: under a causal mask no real token sees what stands behind it, and attention without a
    mask has the fastest kernels. A packed row gets a mask of its own, which holds T * T numbers; a model that was
    loaded with a kernel that takes no masks (flash attention) refuses it.

    Args:
        model: A loaded model with its head, such as of `AutoModelForCausalLM.from_pretrained`.
        target_layer_ids: Layers whose own outputs are the features, from 0, increasing; None takes 5 evenly spaced
            ones, fewer in a shallow model.
        name: For logs and exports; None takes the path that it was loaded from, or else its class.

    Raises:
        ValueError: If it is no such model, the layers cannot be tapped, or its embedding or head does something between
            its modules that is not known here.
    """

    def __init__(self, model: nn.Module, *, target_layer_ids: Sequence[int] | None = None, name: str | None = None):
        self._decoder = decoder_of(model)
        self._config = text_config(model)
        self.num_layers = int(self._config.num_hidden_layers)
        self._layers = layers_of(self._decoder, self.num_layers)
        if target_layer_ids is None:
            target_layer_ids = default_target_layer_ids(self.num_layers)
        self.target_layer_ids = checked_target_layer_ids(target_layer_ids, self.num_layers)
        self.hidden_size = int(self._config.hidden_size)
        self.vocab_size = int(model.get_input_embeddings().weight.shape[0])
        self.rope_theta = rope_theta_of(self._config)
        self.control_ids = control_ids_of(model, self._config)
        self.max_positions = max_positions_of(self._config)
        self.settings = settings_of(self._config)
        self.name = name or self._config._name_or_path or type(model).__name__
        self._embedding_scale = embedding_scale_of(model, self._config)
        accepted = inspect.signature(self._decoder.forward).parameters
        # Renamed in transformers 5.
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self.model = model.eval().requires_grad_(False)
        check_embed_and_head(self, self._decoder, self._layers[0])

    @property
    def device(self) -> torch.device:
        """Where its embeddings stand."""
        return self.model.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights and features."""
        return self.model.get_input_embeddings().weight.dtype

    @cached_property
    def fingerprint(self) -> str:
        """Names its weights: shapes, and up to 4,096 numbers of each tensor. Made once."""
        return weights_fingerprint(self.model)

    def features(self, batch: Batch, *, with_logits: bool = False) -> TargetFeatures:
        """Run the model over a batch.

        Args:
            batch: Padded or packed, on any device.
            with_logits: Give the logits too; the whole model runs then.

        Returns:
            Hidden states of the tapped layers, logits if asked for, and the batch on this target's device.

        Raises:
            ValueError: If the batch has an id past the vocabulary or a position past the model's last one, or is packed
                and the model's attention takes no masks.
        """
        width = int(batch.lengths.max()) if batch.layout == "packed" else batch.input_ids.shape[1]
        self.check_fits(batch.input_ids, num_positions=width)
        batch = batch.to(self.device, non_blocking=True)
        arguments: dict[str, Any] = {}
        masks: Callable[[int | None], torch.Tensor] | None = None
        if batch.layout == "packed":
            arguments["position_ids"] = batch.position_ids

            def masks(window: int | None) -> torch.Tensor:
                return packed_mask(batch.document_ids, batch.position_ids, window)

        hidden, last = self._run(batch.input_ids, masks, arguments, whole=with_logits)
        return TargetFeatures(hidden=hidden, batch=batch, logits=self._logits(last) if with_logits else None)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embed tokens as the model does, with Gemma's scale, without GPT-2's learned positions.

        Args:
            input_ids: int64, any shape.

        Returns:
            (..., hidden_size) in the target's dtype.
        """
        embedded = self.model.get_input_embeddings()(input_ids)  # (..., H)
        if self._embedding_scale != 1.0:
            # Rounded to the dtype first, as the models do.
            embedded = embedded * torch.tensor(self._embedding_scale, dtype=embedded.dtype, device=embedded.device)
        return embedded

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Turn normed states into logits, with the model's scale or soft cap; gradients pass through to `hidden`.

        Args:
            hidden: (..., hidden_size), normed by the caller; cast to the target's dtype.

        Returns:
            (..., vocab_size) in the target's dtype.
        """
        head = self.model.get_output_embeddings()
        return transformed_logits(head(hidden.to(head.weight.dtype)), self._config)

    def to(self, device: torch.device | str) -> TransformersTarget:
        """Give a copy on another device, or itself if it is there."""
        wanted = torch.empty(0, device=device).device
        if wanted == self.device:
            return self
        copied = copy.copy(self)
        copied.model = copy_to_device(self.model, wanted)
        copied._decoder = decoder_of(copied.model)
        copied._layers = layers_of(copied._decoder, self.num_layers)
        return copied

    def new_cache(self) -> KeyValueCache:
        """Give an empty cache, for `extend`."""
        from transformers import DynamicCache

        return KeyValueCache(DynamicCache(), self.device)

    def extend(
        self,
        input_ids: torch.Tensor,
        cache: KeyValueCache,
        *,
        position_ids: torch.Tensor | None = None,
        tree_mask: torch.Tensor | None = None,
    ) -> TargetStep:
        """Run new tokens behind the cached ones, and cache them.

        Args:
            input_ids: int64 (1, n), n >= 1.
            cache: From this target's `new_cache`.
            position_ids: int64 (1, n); None counts on from the cache's length.
            tree_mask: bool (n, n), True at [i, j] where new token i sees new token j; every cached token is seen. None
                is causal.

        Returns:
            Logits and hidden states of the new tokens.

        Raises:
            ValueError: If shapes do not agree, or an id or position is past the model's last one.
        """
        if input_ids.ndim != 2 or input_ids.shape[0] != 1 or input_ids.shape[1] < 1:
            raise ValueError(f"input_ids has the shape {tuple(input_ids.shape)}; legal: (1, n) with n >= 1")
        num_new = input_ids.shape[1]
        if tree_mask is not None and tree_mask.shape != (num_new, num_new):
            raise ValueError(f"tree_mask has the shape {tuple(tree_mask.shape)}; legal: ({num_new}, {num_new})")
        if position_ids is None:
            position_ids = torch.arange(cache.length, cache.length + num_new)[None]
        if position_ids.shape != input_ids.shape:
            raise ValueError(f"position_ids has the shape {tuple(position_ids.shape)}; legal: (1, {num_new})")
        self.check_fits(input_ids, num_positions=int(position_ids.max()) + 1)
        position_ids = position_ids.to(self.device)
        new_positions, cached_positions = position_ids[0], cache.positions
        masks = None
        if tree_mask is not None or (cache.length and not self._sees_all(cache.length, num_new)):
            tree = None if tree_mask is None else tree_mask.to(self.device)

            def masks(window: int | None) -> torch.Tensor:
                return extension_mask(cached_positions, new_positions, tree, window)

        arguments = {"position_ids": position_ids, self._cache_argument: cache.entries, "use_cache": True}
        hidden, last = self._run(input_ids.to(self.device), masks, arguments, whole=True)
        cache.positions = torch.cat([cached_positions, new_positions])
        return TargetStep(logits=self._logits(last), hidden=hidden)

    def check_fits(self, input_ids: torch.Tensor, *, num_positions: int) -> None:
        """Check that the model knows all ids and has enough positions.

        Args:
            input_ids: int64, any shape but empty.
            num_positions: How many are needed.

        Raises:
            ValueError: If it does not.
        """
        low, high = (int(bound) for bound in input_ids.aminmax())
        if low < 0 or high >= self.vocab_size:
            raise ValueError(
                f"the batch has the id {low if low < 0 else high}, and {self.name} has a vocabulary of "
                f"{self.vocab_size}; legal: samples tokenised with the target's own tokenizer"
            )
        most = self.max_positions
        if most is not None and num_positions > most:
            raise ValueError(
                f"the batch has {num_positions} positions, and {self.name} has {most}; legal: max_seq_len of at most "
                f"{most}"
            )

    def _run(
        self,
        input_ids: torch.Tensor,
        masks: Callable[[int | None], torch.Tensor] | None,
        arguments: dict[str, Any],
        *,
        whole: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Give the taps, and the normed states of the last layer if the whole decoder runs."""
        num_taps = len(self.target_layer_ids)
        # Outside of inference mode, so that it is a normal tensor.
        taps = torch.empty(
            *input_ids.shape, num_taps * self.hidden_size, dtype=self.dtype, device=self.device
        )  # (R, T, K * H)
        # The defaults of a caller's cache come last.
        arguments = {"use_cache": False, **arguments}
        last = None
        with model_lock(self.model), ExitStack() as hooks, torch.inference_mode():
            if masks is not None:
                arguments["attention_mask"] = self._apply_masks(masks, hooks)
            hooks.enter_context(self._tapped(taps, stop=not whole))
            try:
                last = self._decoder(input_ids=input_ids, **arguments).last_hidden_state  # (R, T, H)
            except _LastTapReached:
                pass
        return taps, last

    def _sees_all(self, num_cached: int, num_new: int) -> bool:
        """Whether the new token is a single one that sees every cached one, in every layer."""
        windows = windows_of(self._config)
        return num_new == 1 and all(window is None or num_cached < window for window in windows)

    def _apply_masks(self, masks: Callable[[int | None], torch.Tensor], hooks: ExitStack) -> torch.Tensor:
        """Give the mask to call the decoder with, and hook those of layers that need another one into them."""
        kernel = self._config._attn_implementation
        if kernel not in _MASKED_ATTENTION:
            raise ValueError(
                f"the model's attention {kernel!r} takes no masks for packed rows and cached tokens; legal: load it "
                f"with attn_implementation={' or '.join(map(repr, _MASKED_ATTENTION))}, or use padded batches"
            )
        windows = windows_of(self._config)
        made = {window: additive(masks(window), self.dtype) for window in set(windows)}
        for layer, window in zip(self._layers, windows, strict=True):
            if window != windows[0]:
                # The decoder hands its layers the one mask that it is called with.
                hooks.enter_context(
                    _removed(layer.register_forward_pre_hook(_mask_hook(made[window]), with_kwargs=True))
                )
        return made[windows[0]]

    @contextmanager
    def _tapped(self, taps: torch.Tensor, *, stop: bool) -> Iterator[None]:
        """Copy the tapped layers' outputs into their places while it lasts."""
        with ExitStack() as hooks:
            for place, layer_id in enumerate(self.target_layer_ids):
                part = taps[..., place * self.hidden_size : (place + 1) * self.hidden_size]  # (R, T, H)
                is_last = stop and layer_id == self.target_layer_ids[-1]
                hook = self._layers[layer_id].register_forward_hook(_tap_hook(part, stop=is_last))
                hooks.enter_context(_removed(hook))
            yield

    @torch.no_grad()
    def _logits(self, last: torch.Tensor) -> torch.Tensor:
        """Fill a normal tensor with logits, a few rows at a time."""
        states = last.flatten(0, 1)  # (R * T, H)
        logits = torch.empty(len(states), self.vocab_size, dtype=self.dtype, device=last.device)  # (R * T, V)
        rows = max(1, _LOGITS_AT_ONCE // self.vocab_size)
        for begin in range(0, len(states), rows):
            logits[begin : begin + rows] = self.lm_head(states[begin : begin + rows])
        return logits.view(*last.shape[:-1], self.vocab_size)


def _tap_hook(place: torch.Tensor, *, stop: bool) -> Callable[..., None]:
    def hook(_module: nn.Module, _arguments: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        place.copy_(output if isinstance(output, torch.Tensor) else output[0])
        if stop:
            raise _LastTapReached

    return hook


def _mask_hook(mask: torch.Tensor) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
        if "attention_mask" not in named:
            raise ValueError(f"{type(module).__name__} is not given its attention_mask by name, as layers here have to")
        return arguments, {**named, "attention_mask": mask}

    return hook


@contextmanager
def _removed(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()
