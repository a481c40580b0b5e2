"""Threads of targets: order, errors, ends."""

import gc
import threading
import time
import warnings

import numpy as np
import pytest
import torch

from dflash_lab import batching, data
from dflash_lab.feed.bounded_queue import BoundedQueue
from dflash_lab.feed.prefetch import BatchPrefetcher
from dflash_lab.target import TargetFeatures, TargetForwardLoop, TargetForwardLoops, TransformersTarget


class EchoTarget:
    """Its hidden state at each position is the id that stands there."""

    def __init__(self, *, seed=0, most_seconds=0.0, fails_at=None, forever=None):
        self.rng, self.most_seconds, self.fails_at = np.random.default_rng(seed), most_seconds, fails_at
        self.forever = forever
        self.num_passes = 0

    def features(self, batch, *, with_logits=False):
        self.num_passes += 1
        if self.forever is not None:
            self.forever.wait()
        time.sleep(self.rng.uniform(0, self.most_seconds))
        if batch.batch_id == self.fails_at:
            raise ValueError(f"boom {batch.batch_id}")
        hidden = batch.input_ids[..., None].float()
        return TargetFeatures(hidden=hidden, batch=batch, logits=-hidden if with_logits else None)


class Source:
    """Batches for several targets, each to the one that has the fewest, or in turn; what a prefetcher does."""

    def __init__(self, batches, num_targets, *, depth=2, emptiest=True, fails_at=None):
        self.queues = [BoundedQueue(depth) for _ in range(num_targets)]
        self.batches, self.emptiest, self.fails_at = batches, emptiest, fails_at
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            for turn, batch in enumerate(self.batches):
                if batch.batch_id == self.fails_at:
                    raise ValueError(f"boom {batch.batch_id} in the source")
                number = min(range(len(self.queues)), key=lambda number: len(self.queues[number]))
                if not self.queues[number if self.emptiest else turn % len(self.queues)].offer(batch):
                    return
        except ValueError as error:
            for queue in self.queues:
                queue.fail(error)
            return
        for queue in self.queues:
            queue.finish()

    def iter_target(self, target):
        return iter(self.queues[target])

    def close(self):
        for queue in self.queues:
            queue.close()
        self.thread.join()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    yield
    until = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before, threading.enumerate()


@pytest.fixture
def batches(some_samples, padded_batch):
    rng = np.random.default_rng(5)
    return [
        padded_batch(some_samples(rng.integers(1, 9, size=3).tolist(), seed=number), batch_id=number)
        for number in range(20)
    ]


@pytest.mark.parametrize("emptiest", [True, False])
@pytest.mark.parametrize("num_targets", [1, 3])
def test_features_come_in_plan_order_and_belong_to_their_batch(batches, num_targets, emptiest):
    targets = [EchoTarget(seed=seed, most_seconds=0.02) for seed in range(num_targets)]
    with TargetForwardLoops(targets, Source(batches, num_targets, emptiest=emptiest)) as loops:
        seen = list(loops)
        assert next(loops, None) is None
    assert [features.batch.batch_id for features in seen] == list(range(20))
    for features, batch in zip(seen, batches, strict=True):
        assert torch.equal(features.hidden[..., 0], features.batch.input_ids.float())
        assert torch.equal(features.batch.input_ids, batch.input_ids)
    assert sum(target.num_passes for target in targets) == 20
    assert num_targets == 1 or min(target.num_passes for target in targets) > 0


def test_ids_may_begin_anywhere_and_have_gaps(batches):
    some = [batches[number] for number in (4, 5, 9, 12, 13, 19)]
    targets = [EchoTarget(seed=seed, most_seconds=0.02) for seed in range(3)]
    with TargetForwardLoops(targets, Source(some, 3)) as loops:
        assert [features.batch.batch_id for features in loops] == [4, 5, 9, 12, 13, 19]


def test_one_loop_gives_logits_when_asked(batches):
    with TargetForwardLoop(EchoTarget(), batches, with_logits=True) as loop:
        seen = list(loop)
    assert [features.batch.batch_id for features in seen] == list(range(20))
    assert all(torch.equal(features.logits, -features.hidden) for features in seen)


@pytest.mark.parametrize("num_targets", [1, 3])
def test_an_error_of_a_target_comes_behind_what_is_before_it_with_its_own_traceback(batches, num_targets):
    targets = [EchoTarget(seed=seed, most_seconds=0.01, fails_at=13) for seed in range(num_targets)]
    seen = []
    with TargetForwardLoops(targets, Source(batches, num_targets)) as loops:
        for _ in range(3):
            with pytest.raises(ValueError, match="boom 13") as caught:
                for features in loops:
                    seen.append(features.batch.batch_id)
        assert caught.traceback[-1].name == "features"
        assert [entry.name for entry in caught.traceback].count("features") == 1
    assert seen == list(range(13))


@pytest.mark.parametrize("num_targets", [1, 3])
def test_an_error_of_the_source_reaches_the_consumer(batches, num_targets):
    source = Source(batches, num_targets, fails_at=7)
    with TargetForwardLoops([EchoTarget()] * num_targets, source) as loops:
        seen = []
        with pytest.raises(ValueError, match="boom 7 in the source"):
            for features in loops:
                seen.append(features.batch.batch_id)
    assert seen == list(range(7))


@pytest.mark.parametrize("num_targets", [1, 3])
def test_an_early_break_ends_every_thread(batches, num_targets):
    targets = [EchoTarget() for _ in range(num_targets)]
    begin = time.monotonic()
    with TargetForwardLoops(targets, Source(batches, num_targets, depth=1), depth=1) as loops:
        for features in loops:
            if features.batch.batch_id == 2:
                break
        time.sleep(0.2)
        # Three taken; of each target one that waits, one that is looked at and one in the thread's hands.
        assert sum(target.num_passes for target in targets) <= 3 + 3 * num_targets
        assert max(loops.depths()) <= 2
    assert time.monotonic() - begin < 2
    loops.close()
    assert next(loops, None) is None


def test_close_wakes_a_thread_that_waits_for_a_batch_and_a_consumer_that_waits_for_features():
    source = Source([], 1)
    source.queues[0] = BoundedQueue(1)
    loops = TargetForwardLoops([EchoTarget()], source)
    ended = []
    consumer = threading.Thread(target=lambda: ended.append(next(loops, None)))
    consumer.start()
    time.sleep(0.05)
    begin = time.monotonic()
    loops.close()
    consumer.join(timeout=2)
    assert ended == [None]
    assert time.monotonic() - begin < 2
    assert loops.loops[0].starved_seconds >= 0.05


def test_one_loop_ends_its_source(batches):
    queue = BoundedQueue(1)
    loop = TargetForwardLoop(EchoTarget(), queue, end_source=queue.close)
    loop.close()
    assert not loop.thread.is_alive()
    assert next(loop, None) is None


def test_a_forward_pass_that_does_not_end_is_left_behind_with_one_warning(batches):
    forever = threading.Event()
    loop = TargetForwardLoop(EchoTarget(forever=forever), batches)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match="dflash-target-forward") as warned:
        loop.close()
    assert time.monotonic() - begin < 2
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.close()
    forever.set()


def test_an_abandoned_loop_ends_by_itself(batches):
    loop = TargetForwardLoop(EchoTarget(), batches, depth=1)
    next(loop)
    thread = loop.thread
    del loop
    gc.collect()
    thread.join(timeout=3)
    assert not thread.is_alive()


def test_seconds_are_counted_where_they_pass(batches):
    with TargetForwardLoop(EchoTarget(most_seconds=1e-9), batches[:4], depth=1) as loop:
        time.sleep(0.1)
        assert loop.blocked_seconds >= 0.05
        list(loop)
        assert loop.busy_seconds < 0.05
    slow = EchoTarget()
    slow.features = lambda batch, with_logits: time.sleep(0.03) or EchoTarget().features(batch)
    with TargetForwardLoop(slow, batches[:4]) as loop:
        list(loop)
        assert 0.12 <= loop.busy_seconds < 1


def test_what_cannot_be_is_refused(batches):
    with pytest.raises(ValueError, match="depth is 0"):
        TargetForwardLoop(EchoTarget(), batches, depth=0)
    with pytest.raises(ValueError, match="targets is empty; legal: at least one"):
        TargetForwardLoops([], Source([], 1))


def test_features_are_the_same_to_the_bit_for_any_number_of_loops(batches, tiny_model):
    target = TransformersTarget(tiny_model("qwen3"), target_layer_ids=(0, 2, 5))
    expected = [target.features(batch).hidden for batch in batches]
    copied = TransformersTarget(tiny_model("qwen3"), target_layer_ids=(0, 2, 5))
    for targets in ([target], [target, copied], [target, target, copied]):
        with TargetForwardLoops(targets, Source(batches, len(targets))) as loops:
            assert all(torch.equal(features.hidden, hidden) for features, hidden in zip(loops, expected, strict=True))


@pytest.mark.parametrize(("num_targets", "start"), [(1, 0), (3, 0), (3, 7)])
def test_with_a_real_prefetcher(num_targets, start):
    rows = [
        {"input_ids": np.arange(number % 9 + 1) + number, "loss_mask": [1] * (number % 9 + 1)} for number in range(60)
    ]
    dataset = data.PreloadedDataset.from_rows(rows)
    config = batching.BatchingConfig(strategy="random", token_budget=32, max_seq_len=16, max_batch_size=4)
    plan = batching.plan_epoch(dataset.lengths, config, epoch=2)
    assert len(plan) >= 15
    prefetcher = BatchPrefetcher(dataset, plan, num_targets=num_targets, depth=2, start=start)
    targets = [EchoTarget(seed=seed, most_seconds=0.01) for seed in range(num_targets)]
    with TargetForwardLoops(targets, prefetcher) as loops:
        seen = list(loops)
    assert [features.batch.batch_id for features in seen] == list(range(start, len(plan)))
    for features in seen:
        assert features.batch.sample_ids.tolist() == plan[features.batch.batch_id].tolist()
        for row, sample_id in enumerate(features.batch.sample_ids.tolist()):
            length = int(features.batch.lengths[row])
            assert features.hidden[row, :length, 0].tolist() == rows[sample_id]["input_ids"].tolist()


def test_an_unreadable_sample_of_a_real_prefetcher_reaches_the_consumer():
    class Samples:
        lengths = np.full(100, 4, np.int32)

        def __getitem__(self, sample_id):
            if sample_id == 13:
                raise ValueError("boom 13")
            return data.Sample(np.full(4, sample_id), np.ones(4, bool), sample_id)

    config = batching.BatchingConfig(strategy="random", token_budget=8, max_seq_len=4)
    plan = batching.plan_epoch(Samples.lengths, config, epoch=0)
    with TargetForwardLoops([EchoTarget(), EchoTarget()], BatchPrefetcher(Samples(), plan, num_targets=2)) as loops:
        seen = []
        with pytest.raises(ValueError, match="boom 13"):
            for features in loops:
                seen.append(features.batch)
    bad = next(number for number in range(50) if 13 in plan[number].tolist())
    assert [batch.batch_id for batch in seen] == list(range(bad))
