"""Keys and values of one sequence, with entries that can be dropped from its middle."""

from __future__ import annotations

from typing import Any

import torch


class KeyValueCache:
    """A transformers cache of one sequence that keeps every entry, in sliding layers too.

    transformers' own sliding caches forget what is out of the window, and cannot take back a draft that was refused.
    Masks keep the window here, so that any entry can go or stay; memory grows with the length in every layer.

    Args:
        entries: An empty `DynamicCache` without layer types.
        device: Where positions stand.
    """

    def __init__(self, entries: Any, device: torch.device) -> None:
        self.entries = entries
        self.positions = torch.empty(0, dtype=torch.int64, device=device)  # (length,)

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return len(self.positions)

    def keep(self, length: int, indices: torch.Tensor) -> None:
        """Keep the first `length` entries and of the later ones those at `length + indices`, in this order.

        Args:
            length: In [0, self.length].
            indices: int64 (m,), each in [0, self.length - length), none twice.

        Raises:
            ValueError: If there are no such entries.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length is {length}; legal: a whole number in [0, {self.length}]")
        indices = torch.as_tensor(indices, dtype=torch.int64, device=self.positions.device)
        kept = indices.tolist()
        if any(not 0 <= index < self.length - length for index in kept) or len(set(kept)) != len(kept):
            raise ValueError(f"indices is {kept}; legal: different whole numbers in [0, {self.length - length})")
        if kept == list(range(len(kept))):
            self._take(slice(0, length + len(kept)))
        else:
            self._take(torch.cat([torch.arange(length, device=indices.device), length + indices]))

    def _take(self, chosen: slice | torch.Tensor) -> None:
        self.positions = self.positions[chosen]
        if not hasattr(self.entries, "layers"):
            # transformers before 4.54.
            self.entries.key_cache = [keys[:, :, chosen] for keys in self.entries.key_cache]
            self.entries.value_cache = [values[:, :, chosen] for values in self.entries.value_cache]
            if hasattr(self.entries, "_seen_tokens"):
                self.entries._seen_tokens = len(self.positions)
            return
        for layer in self.entries.layers:
            if layer.keys is not None:
                layer.keys = layer.keys[:, :, _on(chosen, layer.keys)]  # (1, heads, length, head_dim)
                layer.values = layer.values[:, :, _on(chosen, layer.values)]


def _on(chosen: slice | torch.Tensor, tensor: torch.Tensor) -> slice | torch.Tensor:
    """Put an index where a tensor is: a model can be spread over devices."""
    return chosen if isinstance(chosen, slice) else chosen.to(tensor.device)
