"""The index of delayed batches against a plain set: whatever is scheduled, shed, scanned and taken in any order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from danubius.shard.features.delays.core.index import ENDLESS, DelayIndex, due_of, key_of

MARGIN_MS = 500


class DelayIndexModel(RuleBasedStateMachine):
    """`waiting` is what a log would hold above its watermark."""

    def __init__(self) -> None:
        super().__init__()
        self.index = DelayIndex()
        self.waiting: set[int] = set()
        self.now_ms = 10_000
        self.offset = 0
        self.last = 0
        self.taken: list[int] = []

    @rule(delay_ms=st.integers(-3000, 8000))
    def schedule(self, delay_ms: int) -> None:
        due_ms = max(self.now_ms + delay_ms, due_of(self.last), 0)
        key = key_of(due_ms, self.offset)
        self.offset += 1
        self.index.add(key)
        self.waiting.add(key)

    @rule(step_ms=st.integers(0, 3000))
    def wait(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(count_max=st.integers(1, 8))
    def take(self, count_max: int) -> None:
        if self.index.wants_scan(self.now_ms, MARGIN_MS):
            self.scan()
        taken = self.index.take_due(self.now_ms, ENDLESS, count_max)
        held = sorted(key for key in self.waiting if key < self.index.horizon)
        due = [key for key in held if due_of(key) <= self.now_ms]
        assert taken == due[:count_max]
        if taken:
            assert taken[0] > self.last
            self.last = taken[-1]
            self.waiting.difference_update(taken)
            self.taken = taken

    @precondition(lambda self: self.taken)
    @rule()
    def put_back(self) -> None:
        self.index.put_back(self.taken)
        self.waiting.update(self.taken)
        self.last = 0 if not self.taken else self.taken[0] - 1
        self.taken = []

    @rule(count_max=st.integers(1, 10))
    def shed(self, count_max: int) -> None:
        self.index.shed(count_max)
        self.taken = []
        assert len(self.index) <= count_max

    @rule()
    def scan(self) -> None:
        first = self.index.begin_scan()
        for key in self.waiting:
            if key >= first:
                self.index.add(key)

    @rule(back_ms=st.integers(0, 5000))
    def failed_scan(self, back_ms: int) -> None:
        """A scan that broke off: all it found is forgotten, and found by the next."""
        first = key_of(self.now_ms + back_ms, 0)
        self.index.shed_from(first)
        self.taken = []

    @invariant()
    def counts_all(self) -> None:
        self.index.check()
        assert self.index.pending == len(self.waiting)

    @invariant()
    def looks_again_in_time(self) -> None:
        next_ms = self.index.next_due_ms(MARGIN_MS)
        assert (next_ms is None) == (not self.waiting)
        if next_ms is not None:
            assert next_ms <= due_of(min(self.waiting))


TestDelayIndex = DelayIndexModel.TestCase
