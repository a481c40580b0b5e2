"""Queues and threads: order, errors, early ends and bounded closing, each test as many rounds as are asked for."""

import gc
import os
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest
import torch

from dflash_lab.batching import BatchingConfig, plan_epoch
from dflash_lab.data import PreloadedDataset
from dflash_lab.feed import BatchPrefetcher, BoundedQueue, QueueEnded, collate, run_ahead

ROUNDS = int(os.environ.get("DFLASH_LAB_SOAK_ROUNDS", "1"))
# Those that start an interpreter take seconds, and nothing about them is left to chance.
ONCE = (
    "test_nothing_keeps_the_interpreter_alive",
    "test_without_an_accelerator_memory_is_ordinary_and_said_once",
    "test_a_forked_child_is_told_that_the_threads_are_elsewhere",
)


@pytest.fixture(params=range(ROUNDS), autouse=True)
def every_thread_ends(request):
    if request.param and request.function.__name__ in ONCE:
        pytest.skip("once is enough")
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 5
    while time.monotonic() < until and set(threading.enumerate()) - before:
        time.sleep(0.01)
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


class Samples:
    """Samples whose ids tell which sample they are; reading can be slow, or break at one of them."""

    def __init__(self, num_samples=100, *, length=7, breaks_at=None, gate=None):
        self.lengths = np.full(num_samples, length, dtype=np.int32)
        self.breaks_at, self.gate = breaks_at, gate
        self.read = []

    def __len__(self):
        return len(self.lengths)

    def token_views(self, sample_id):
        if self.gate is not None:
            self.gate.wait(20)
        if sample_id == self.breaks_at:
            raise ValueError(f"boom {sample_id}")
        self.read.append(sample_id)
        length = self.lengths[sample_id]
        return np.full(length, sample_id, np.int32), np.ones(length, np.uint8)


def plan_of(samples, *, per_batch=1, strategy="as_given", order="as_built"):
    budget = per_batch * int(samples.lengths.max())
    config = BatchingConfig(strategy=strategy, order=order, token_budget=budget, max_seq_len=64)
    return plan_epoch(samples.lengths, config, epoch=0)


def consume_all(prefetcher, num_targets, *, delays=None):
    """Take every target's batches in a thread of its own; give their ids, or what was raised."""
    taken = [[] for _ in range(num_targets)]
    errors = [None] * num_targets

    def run(target):
        try:
            for batch in prefetcher.iter_target(target):
                taken[target].append(batch.batch_id)
                if delays:
                    time.sleep(delays[target])
        except BaseException as error:
            errors[target] = error

    threads = [threading.Thread(target=run, args=(target,)) for target in range(num_targets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return taken, errors


# run_ahead


def test_items_come_in_order_and_the_end_stays_the_end():
    ahead = run_ahead(range(100), depth=3)
    assert list(ahead) == list(range(100))
    assert list(ahead) == [] and next(ahead, "end") == "end"
    ahead.close()


def test_an_error_comes_behind_the_good_items_with_its_own_traceback_and_again():
    def breaking():
        yield from range(3)
        raise KeyError("lost")

    with run_ahead(breaking(), depth=10) as ahead:
        assert [next(ahead) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(KeyError, match="lost") as caught:
                next(ahead)
            assert "breaking" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_no_more_than_depth_items_and_one_in_hand_are_produced():
    produced = []

    def source():
        for number in range(1_000):
            produced.append(number)
            yield number

    with run_ahead(source(), depth=2) as ahead:
        for _ in range(3):
            next(ahead)
        time.sleep(0.2)
        assert len(produced) <= 3 + 2 + 1


def test_closing_wakes_a_blocked_producer_and_closes_its_generator():
    closed = threading.Event()

    def source():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    ahead = run_ahead(source(), depth=1)
    begin = time.monotonic()
    ahead.close()
    ahead.close()
    assert time.monotonic() - begin < 2
    assert closed.wait(2)
    assert next(ahead, "end") == "end"


def test_closing_while_a_read_is_stuck_takes_less_than_two_seconds_and_warns():
    gate = threading.Event()

    def stuck():
        gate.wait(20)
        yield 1

    ahead = run_ahead(stuck(), depth=1)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match="still inside a read"):
        ahead.close()
    ahead.close()
    assert time.monotonic() - begin < 2
    gate.set()


def test_closing_wakes_a_waiting_consumer():
    gate = threading.Event()

    def slow():
        gate.wait(20)
        yield 1

    ahead = run_ahead(slow(), depth=1)
    got = []
    consumer = threading.Thread(target=lambda: got.extend(ahead))
    consumer.start()
    ahead.queue.close()
    consumer.join(5)
    assert not consumer.is_alive() and got == []
    gate.set()
    ahead.close()


def test_an_abandoned_one_ends_its_thread():
    def endless():
        while True:
            yield 1

    ahead = run_ahead(endless(), depth=1)
    next(ahead)
    del ahead
    gc.collect()


@pytest.mark.parametrize("what", ["full", "stuck"])
def test_nothing_keeps_the_interpreter_alive(what):
    source = {"full": "iter(int, 1)", "stuck": "(time.sleep(60) for _ in range(9))"}[what]
    code = f"import time; from dflash_lab.feed import run_ahead; a = run_ahead({source}, depth=1); time.sleep(0.1)"
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert time.monotonic() - begin < 40


@pytest.mark.parametrize("raised", [QueueEnded, StopIteration])
def test_what_would_look_like_an_end_is_an_error(raised):
    class Source:
        def __init__(self):
            self.items = iter([1])

        def __iter__(self):
            return self

        def __next__(self):
            for item in self.items:
                return item
            raise raised("of an inner queue")

    samples = Samples(9)
    samples.token_views = lambda sample_id: (_ for _ in ()).throw(raised("inside"))
    with BatchPrefetcher(samples, plan_of(samples)) as prefetcher, pytest.raises(RuntimeError, match=raised.__name__):
        list(prefetcher)
    if raised is QueueEnded:
        with run_ahead(Source(), depth=2) as ahead:
            assert next(ahead) == 1
            with pytest.raises(RuntimeError, match="a producer raised QueueEnded"):
                next(ahead)


# BoundedQueue


def test_a_queue_of_two_producers_ends_when_both_have_finished():
    queue = BoundedQueue(4, num_producers=2)
    queue.put(1)
    queue.finish()
    assert next(queue) == 1 and not queue.complete
    queue.put(2)
    queue.finish()
    assert list(queue) == [2] and queue.complete
    with pytest.raises(QueueEnded):
        queue.get()


def test_a_failed_queue_never_looks_complete():
    queue = BoundedQueue(4)
    queue.put(1)
    queue.fail(ValueError("why"))
    assert queue.get() == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="why"):
            queue.get()
    with pytest.raises(QueueEnded):
        queue.put(2)
    assert not queue.complete


def test_a_full_queue_is_left_when_it_closes():
    queue = BoundedQueue(1)
    queue.put(1)
    refused = []

    def put():
        try:
            queue.put(2)
        except QueueEnded:
            refused.append(True)

    producer = threading.Thread(target=put)
    producer.start()
    queue.close()
    producer.join(5)
    assert refused == [True] and len(queue) == 0


# BatchPrefetcher


def test_every_batch_comes_once_in_plan_order_with_the_right_tokens():
    samples = Samples(23)
    plan = plan_of(samples, per_batch=3)
    for workers, depth in ((1, 1), (3, 2), (4, 50)):
        with BatchPrefetcher(samples, plan, num_workers=workers, depth=depth) as prefetcher:
            for number, batch in enumerate(prefetcher):
                assert batch.batch_id == number
                assert batch.sample_ids.tolist() == plan[number].tolist()
                assert torch.equal(batch.input_ids[:, 0], batch.sample_ids)
                assert batch.attention_mask.all() and batch.loss_mask.all()
            assert prefetcher.complete and prefetcher.batches_produced == prefetcher.batches_consumed == len(plan)


@pytest.mark.parametrize(("num_targets", "num_batches"), [(4, 10), (10, 3), (1, 1), (3, 3)])
def test_every_target_gets_its_share_and_ends(num_targets, num_batches):
    samples = Samples(num_batches)
    with BatchPrefetcher(samples, plan_of(samples), num_targets=num_targets, num_workers=2, depth=2) as prefetcher:
        taken, errors = consume_all(prefetcher, num_targets)
        assert errors == [None] * num_targets
        assert taken == [list(range(target, num_batches, num_targets)) for target in range(num_targets)]
        assert prefetcher.complete


def test_workers_serve_the_emptiest_queue():
    samples = Samples(200)
    with BatchPrefetcher(samples, plan_of(samples), num_targets=2, num_workers=1, depth=8) as prefetcher:
        fast, slow = prefetcher.iter_target(0), prefetcher.iter_target(1)
        until = time.monotonic() + 10
        while prefetcher.depths() != [8, 8] and time.monotonic() < until:
            time.sleep(0.01)
        assert prefetcher.depths() == [8, 8]
        for _ in range(40):
            next(fast)
        next(slow)
        while prefetcher.depths() != [8, 8] and time.monotonic() < until:
            time.sleep(0.01)
        # A queue that nobody drains does not keep the other one empty.
        assert prefetcher.depths() == [8, 8]


def test_an_early_break_builds_no_more_than_it_may():
    samples = Samples(1_000)
    prefetcher = BatchPrefetcher(samples, plan_of(samples), num_workers=1, depth=2)
    batches = iter(prefetcher)
    for _ in range(3):
        next(batches)
    time.sleep(0.3)
    assert len(samples.read) <= 3 + 2 + 1
    begin = time.monotonic()
    prefetcher.close()
    prefetcher.close()
    assert time.monotonic() - begin < 2
    assert list(batches) == [] and not prefetcher.complete


def test_an_abandoned_prefetcher_ends_its_workers():
    samples = Samples(1_000)
    batches = iter(BatchPrefetcher(samples, plan_of(samples), depth=2))
    next(batches)
    del batches
    gc.collect()


def test_closing_before_the_first_use():
    samples = Samples(5)
    prefetcher = BatchPrefetcher(samples, plan_of(samples))
    prefetcher.close()
    with pytest.raises(ValueError, match="the prefetcher is closed"):
        iter(prefetcher)


def test_closing_while_a_read_is_stuck():
    gate = threading.Event()
    samples = Samples(5, gate=gate)
    prefetcher = BatchPrefetcher(samples, plan_of(samples), num_workers=2)
    batches = iter(prefetcher)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match="still inside a read"):
        prefetcher.close()
    assert time.monotonic() - begin < 2
    assert list(batches) == []
    gate.set()


@pytest.mark.parametrize(("num_targets", "num_workers"), [(1, 2), (3, 2), (2, 1)])
def test_a_sample_that_cannot_be_read_ends_the_pass_for_everyone(num_targets, num_workers):
    samples = Samples(100, breaks_at=13)
    plan = plan_of(samples)
    with BatchPrefetcher(samples, plan, num_targets=num_targets, num_workers=num_workers, depth=4) as prefetcher:
        taken, errors = consume_all(prefetcher, num_targets)
        assert {type(error) for error in errors} == {ValueError}
        assert all(str(error) == "boom 13" for error in errors)
        assert "sample 13 for batch 13 of epoch 0, target" in errors[0].__notes__[0]
        assert "token_views" in [frame.name for frame in traceback.extract_tb(errors[0].__traceback__)]
        for target, numbers in enumerate(taken):
            assert numbers == list(range(target, 100, num_targets))[: len(numbers)]
        assert 13 not in [number for numbers in taken for number in numbers]
        assert not prefetcher.complete
        assert (prefetcher.failure.sample_id, prefetcher.failure.batch_id) == (13, 13)


def test_an_error_that_takes_no_notes_arrives_all_the_same():
    class Bare(Exception):
        __notes__ = ()

    samples = Samples(9)
    samples.token_views = lambda sample_id: (_ for _ in ()).throw(Bare("why"))
    with BatchPrefetcher(samples, plan_of(samples)) as prefetcher, pytest.raises(Bare, match="why"):
        list(prefetcher)


def test_a_thread_that_cannot_start_leaves_no_empty_pass(monkeypatch):
    samples = Samples(9)
    honest, started = threading.Thread.start, []

    def start(thread):
        if len(started) == 1:
            started.append(None)
            raise RuntimeError("can't start new thread")
        started.append(thread)
        honest(thread)

    with BatchPrefetcher(samples, plan_of(samples), num_workers=2) as prefetcher:
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            list(prefetcher)
        assert [batch.batch_id for batch in prefetcher] == list(range(9))


def test_a_forked_child_is_told_that_the_threads_are_elsewhere():
    code = (
        "import os, sys, numpy as np\n"
        "from dflash_lab.data import PreloadedDataset; from dflash_lab.batching import BatchingConfig\n"
        "from dflash_lab.feed import BatchPrefetcher\n"
        "d = PreloadedDataset.from_rows([{'input_ids': [1, 2], 'loss_mask': [0, 1]}] * 99)\n"
        "p = d.build_batches(BatchingConfig(strategy='as_given', token_budget=2, max_seq_len=4), epoch=0)\n"
        "f = BatchPrefetcher(d, p, depth=1); it = iter(f); next(it)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: next(it)\n"
        "    except RuntimeError as error: os._exit(7 if 'another process' in str(error) else 8)\n"
        "    os._exit(9)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 7


def test_several_epochs_are_several_iterations():
    samples = Samples(9)
    with BatchPrefetcher(samples, plan_of(samples), depth=2, start=4) as prefetcher:
        for _ in range(3):
            assert [batch.batch_id for batch in prefetcher] == [4, 5, 6, 7, 8]
        # A pass that was left early is given up.
        next(iter(prefetcher))
        assert [batch.batch_id for batch in prefetcher] == [4, 5, 6, 7, 8]


def test_a_target_that_is_taken_twice_in_a_pass_is_refused():
    samples = Samples(9)
    with BatchPrefetcher(samples, plan_of(samples), num_targets=2, depth=2) as prefetcher:
        first = prefetcher.iter_target(0)
        next(first)
        with pytest.raises(ValueError, match="target 0 was taken in this pass"):
            prefetcher.iter_target(0)


def test_content_does_not_depend_on_workers_or_depth():
    rng = np.random.default_rng(1)
    rows = [
        {"input_ids": rng.integers(0, 500, length).tolist(), "loss_mask": [0] + [1] * (int(length) - 1)}
        for length in rng.integers(2, 60, 150)
    ]
    dataset = PreloadedDataset.from_rows(rows)
    for strategy in ("random", "packed"):
        config = BatchingConfig(strategy=strategy, token_budget=256, max_seq_len=40, seed=2)
        plan = dataset.build_batches(config, epoch=1)
        seen = []
        for workers, depth in ((1, 1), (3, 9)):
            with BatchPrefetcher(dataset, plan, num_workers=workers, depth=depth) as prefetcher:
                seen.append(list(prefetcher))
        for one, other in zip(*seen, strict=True):
            assert torch.equal(one.input_ids, other.input_ids) and torch.equal(one.loss_mask, other.loss_mask)
        for batch in seen[0]:
            columns_of = (batch.sample_ids, batch.rows, batch.starts, batch.lengths)
            rows_of = torch.stack(columns_of, dim=1).tolist()
            for sample_id, row, start, length in rows_of:
                sample = dataset[sample_id]
                assert length == min(40, len(sample.input_ids))
                columns = slice(start, start + length)
                assert batch.input_ids[row, columns].tolist() == sample.input_ids[:length].tolist()
                assert batch.loss_mask[row, columns].tolist() == sample.loss_mask[:length].tolist()
            assert int(batch.attention_mask.sum()) == batch.real_tokens == int(batch.lengths.sum())
            assert not (batch.loss_mask & ~batch.attention_mask).any()
            assert not batch.input_ids[~batch.attention_mask].any()


def test_tensors_are_writable_and_never_alias_the_map():
    dataset = PreloadedDataset.from_rows([{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}] * 4)
    plan = dataset.build_batches(BatchingConfig(strategy="as_given", token_budget=12, max_seq_len=8), epoch=0)
    with BatchPrefetcher(dataset, plan) as prefetcher:
        batch = next(iter(prefetcher))
        batch.input_ids.fill_(9)
        batch.loss_mask.fill_(False)
    assert dataset[0].input_ids.tolist() == [1, 2, 3] and dataset[0].loss_mask.tolist() == [False, True, True]


def test_without_an_accelerator_memory_is_ordinary_and_said_once():
    code = (
        "import logging; logging.basicConfig(format='NOTE %(message)s')\n"
        "import torch; from dflash_lab.data import PreloadedDataset; from dflash_lab.batching import BatchingConfig\n"
        "from dflash_lab.feed import BatchPrefetcher\n"
        "d = PreloadedDataset.from_rows([{'input_ids': [1, 2], 'loss_mask': [0, 1]}] * 9)\n"
        "p = d.build_batches(BatchingConfig(strategy='random', token_budget=4, max_seq_len=4), epoch=0)\n"
        "for _ in range(3):\n"
        "    with BatchPrefetcher(d, p) as f: print({b.input_ids.is_pinned() for b in f})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    if torch.cuda.is_available():
        assert done.stdout == "{True}\n" * 3 and "NOTE" not in done.stderr
    else:
        assert done.stdout == "{False}\n" * 3 and done.stderr.count("NOTE") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine can pin memory")
def test_pinning_where_it_cannot_be_is_refused():
    samples = Samples(5)
    with pytest.raises(ValueError, match='pin_memory is True, but .*; legal here: False, "auto"'):
        BatchPrefetcher(samples, plan_of(samples), pin_memory=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_targets": 0}, "num_targets is 0"),
        ({"num_workers": 0}, "num_workers is 0"),
        ({"depth": 0}, "depth is 0"),
        ({"start": 5}, r"start is 5; legal: a whole number in \[0, 4\]"),
        ({"pin_memory": "yes"}, "pin_memory is 'yes'"),
    ],
)
def test_bad_arguments_are_refused_before_a_thread_starts(options, message):
    samples = Samples(5)
    with pytest.raises(ValueError, match=message):
        BatchPrefetcher(samples, plan_of(samples), **options)


def test_a_plan_of_other_data_is_refused():
    plan = plan_of(Samples(9))
    with pytest.raises(ValueError, match="the plan was made from other data"):
        BatchPrefetcher(Samples(5), plan)
    with pytest.raises(ValueError, match="the plan was made from other data"):
        BatchPrefetcher(Samples(9, length=3), plan)


# collate


def test_padding_stands_on_the_right_and_masks_are_by_position():
    dataset = PreloadedDataset.from_rows(
        [{"input_ids": [0, 5, 0], "loss_mask": [0, 1, 1]}, {"input_ids": [7], "loss_mask": [1]}]
    )
    batch = collate([dataset[0], dataset[1]], pad_to_multiple_of=4)
    assert batch.input_ids.tolist() == [[0, 5, 0, 0], [7, 0, 0, 0]]
    assert batch.attention_mask.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert batch.loss_mask.tolist() == [[False, True, True, False], [True, False, False, False]]
    assert batch.lengths.tolist() == [3, 1] and batch.position_ids is None


def test_a_packed_row_keeps_its_documents_apart():
    dataset = PreloadedDataset.from_rows(
        [{"input_ids": [4, 5, 6], "loss_mask": [0, 1, 1]}, {"input_ids": [7, 8], "loss_mask": [0, 1]}]
    )
    batch = collate([dataset[0], dataset[1]], layout="packed", pad_to_multiple_of=4)
    assert batch.input_ids.tolist() == [[4, 5, 6, 7, 8, 0, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 0, 0]]
    assert batch.document_ids.tolist() == [[0, 0, 0, 1, 1, -1, -1, -1]]
    assert batch.starts.tolist() == [0, 3] and batch.rows.tolist() == [0, 0]


def test_ids_and_mask_of_different_lengths_are_refused():
    from dflash_lab.data import Sample

    with pytest.raises(ValueError, match="sample 4 .*has input_ids .* and loss_mask"):
        collate([Sample(np.arange(3), np.ones(2, bool), 4)])
    with pytest.raises(ValueError, match="samples is empty"):
        collate([])
