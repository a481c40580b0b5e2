import importlib.util
import os
import shutil
import tempfile

import hypothesis
import pytest

# Set before any test module imports a library that reads them. Tests write no cache of the user's and ask no model hub.
CACHE = tempfile.mkdtemp(prefix="dflash-lab-tests-")
os.environ["XDG_CACHE_HOME"] = CACHE
os.environ.pop("DFLASH_LAB_CACHE", None)
os.environ["HF_HOME"] = os.path.join(CACHE, "huggingface")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.pop("MPLBACKEND", None)

# The same examples on every machine, and no deadline: how long one takes depends on what else the machine does.
# To look for new counterexamples: make test ARGS=--hypothesis-profile=search
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("repeatable")


def pytest_unconfigure(config):
    shutil.rmtree(CACHE, ignore_errors=True)


def missing_gpu():
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA device"


def missing_browser():
    if importlib.util.find_spec("playwright") is None:
        return "needs playwright"
    if not (shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")):
        return "needs Chromium"
    return None


def pytest_collection_modifyitems(items):
    # torch takes seconds to import, so it is asked only when a GPU test was collected.
    for marker, find_missing in {"gpu": missing_gpu, "browser": missing_browser}.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = find_missing() if marked else None
        for item in marked if reason else []:
            item.add_marker(pytest.mark.skip(reason=reason))
