"""Studies of seconds, found by other processes too."""

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def tiny_study():
    """The module tiny_study, by a name that other processes can import."""
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    yield importlib.import_module("tiny_study")
    sys.path.remove(folder)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("TINY_STUDY_PARENT", str(os.getpid()))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def settings(tiny_study):
    return tiny_study.make_settings()


@pytest.fixture(scope="session")
def material(tiny_study, settings):
    return tiny_study.open_tiny(settings)


@pytest.fixture(scope="session")
def features(settings, material):
    from dflash_lab import study

    return study.load_or_compute_features(settings, material)


@pytest.fixture(scope="session")
def run(tiny_study):
    """run(outputs, *, processes, opener, **changes) -> Study and what it said."""
    from dflash_lab import study

    def go(outputs, *, processes=1, opener=tiny_study.open_tiny, **changes):
        said = []
        done = study.run_study(
            tiny_study.make_settings(**changes),
            outputs=outputs,
            processes=processes,
            opener=opener,
            on_status=said.append,
        )
        return done, said

    return go


@pytest.fixture(scope="session")
def done(run, tmp_path_factory):
    """A study that was trained in this process."""
    return run(tmp_path_factory.mktemp("study"))[0]
