"""One lock a model, since hooks and settings are the model's and not a call's."""

from __future__ import annotations

import threading
import weakref

from torch import nn

_locks: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_locks_lock = threading.Lock()


def model_lock(model: nn.Module) -> threading.RLock:
    """Give the model's lock: the same one for every target that taps it."""
    with _locks_lock:
        return _locks.setdefault(model, threading.RLock())
