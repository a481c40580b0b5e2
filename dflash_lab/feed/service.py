"""Which batch a worker reads next, and who gets it, on a virtual clock: the same rules as those of the real feeds."""

from __future__ import annotations

from collections import deque


class EmptiestService:
    """Whom a worker reads for in `BatchPrefetcher`: room counts from the moment at which a batch is begun."""

    def __init__(self, num_targets: int, num_workers: int, depth: int, planned: int) -> None:
        self.num_targets, self.depth, self.planned = num_targets, depth, planned
        self.next_built, self.next_taken = list(range(num_targets)), list(range(num_targets))
        self.ready: list[set[int]] = [set() for _ in range(num_targets)]
        self.waiting: deque[int] = deque()

    def claim(self, worker: int) -> int | None:
        """Give the number of the batch that a worker begins now, or None: it waits, for ever if there are no more."""
        left = [target for target in range(self.num_targets) if self.next_built[target] < self.planned]
        if left:
            fewest, number, target = min((self._held(target), self.next_built[target], target) for target in left)
            if fewest < self.depth:
                self.next_built[target] += self.num_targets
                return number
        self.waiting.append(worker)
        return None

    def deliver(self, worker: int, batch: int) -> int:
        """Put a batch that was read where it belongs; gives its target."""
        target = batch % self.num_targets
        self.ready[target].add(batch)
        return target

    def take(self, target: int) -> int | None:
        """Give a target its next batch, or None where it has to wait."""
        number = self.next_taken[target]
        if number not in self.ready[target]:
            return None
        self.ready[target].remove(number)
        self.next_taken[target] += self.num_targets
        return number

    def next_waiting(self, target: int) -> int | None:
        """Give the worker that goes on now that a target has taken a batch, or None."""
        return self.waiting.popleft() if self.waiting else None

    def is_over(self, target: int) -> bool:
        """Whether a target has had all that it will get."""
        return self.next_taken[target] >= self.planned

    def depths(self) -> list[int]:
        """Batches that each target could take."""
        return list(map(len, self.ready))

    def _held(self, target: int) -> int:
        return (self.next_built[target] - self.next_taken[target]) // self.num_targets


class RoundRobinService:
    """Whom a worker reads for in `RoundRobinFeed`: for the next in turn, with a batch in hand where that is full."""

    def __init__(self, num_targets: int, num_workers: int, depth: int, planned: int) -> None:
        self.num_targets, self.depth, self.planned = num_targets, depth, planned
        self.next_number, self.num_put = 0, 0
        self.turns = [worker % num_targets for worker in range(num_workers)]
        self.queues: list[deque[int]] = [deque() for _ in range(num_targets)]
        self.waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(num_targets)]

    def claim(self, worker: int) -> int | None:
        """Give the number of the batch that a worker begins now, or None: it waits, for ever if there are no more."""
        if self.next_number == self.planned:
            return None
        self.next_number += 1
        return self.next_number - 1

    def deliver(self, worker: int, batch: int) -> int | None:
        """Put a batch that was read into the queue in turn; gives its target, or None where the worker has to wait."""
        target = self.turns[worker]
        if len(self.queues[target]) == self.depth:
            self.waiting[target].append((worker, batch))
            return None
        self._put(worker, batch, target)
        return target

    def take(self, target: int) -> int | None:
        """Give a target its next batch, or None where it has to wait."""
        return self.queues[target].popleft() if self.queues[target] else None

    def next_waiting(self, target: int) -> int | None:
        """Give the worker that goes on now that a target has taken a batch, or None."""
        if not self.waiting[target]:
            return None
        worker, batch = self.waiting[target].popleft()
        self._put(worker, batch, target)
        return worker

    def is_over(self, target: int) -> bool:
        """Whether a target has had all that it will get."""
        return self.num_put == self.planned

    def depths(self) -> list[int]:
        """Batches that each target could take."""
        return list(map(len, self.queues))

    def _put(self, worker: int, batch: int, target: int) -> None:
        self.queues[target].append(batch)
        self.turns[worker] = (target + 1) % self.num_targets
        self.num_put += 1
