"""Runs of a second on random data and a random target, alone or in a process of their own."""

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("tiny_run.py")


def load(script):
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_run():
    """The module tiny_run.py."""
    return load(SCRIPT)


@pytest.fixture(scope="session")
def two_ranks():
    """The module two_ranks.py."""
    return load(SCRIPT.with_name("two_ranks.py"))


@pytest.fixture(scope="session")
def target(tiny_run):
    return tiny_run.RandomTarget()


@pytest.fixture(scope="session")
def dataset(tiny_run):
    return tiny_run.make_dataset()


@pytest.fixture(autouse=True)
def one_thread_and_none_left():
    before = set(threading.enumerate())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    # Trackers keep threads of their own.
    started = [thread for thread in threading.enumerate() if thread not in before]
    left = [thread for thread in started if thread.name.startswith("dflash")]
    for thread in left:
        thread.join(5)
    assert not [thread.name for thread in left if thread.is_alive()]


@pytest.fixture(scope="session")
def train(tiny_run, dataset, target):
    """train(run_dir, *, dataset, target, on_step, on_status, resume, validation, **dotted changes) -> RunResult."""
    from dflash_lab import training

    def run(run_dir, *, dataset=dataset, target=target, **changes):
        options = {name: changes.pop(name) for name in OPTIONS if name in changes}
        options = {"on_status": lambda line: None, "device": "cpu", **options}
        return training.train_drafter(tiny_run.make_config(**changes), dataset, target, run_dir, **options)

    return run


OPTIONS = ("validation", "resume", "try_heaviest_first", "on_step", "on_status", "device", "target_devices")


@pytest.fixture(scope="session")
def reference(train, tmp_path_factory):
    """A whole run, never stopped."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    result = train(tmp_path_factory.mktemp("runs") / "reference")
    torch.set_num_threads(threads)
    return result


@pytest.fixture
def start():
    """start(run_dir, *settings, **environment) -> Popen of a run in a process of its own; killed at the end."""
    started = []

    def run(run_dir, *settings, **environment):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(run_dir), *settings],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def assert_same():
    """assert_same(weights, other weights): equal to the bit."""

    def check(weights, others):
        assert weights.keys() == others.keys()
        for name in weights:
            assert torch.equal(weights[name], others[name]), name

    return check
