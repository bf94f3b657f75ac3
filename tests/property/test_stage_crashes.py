"""Stages on a bad disk, with kills and power loss at any step: a batch of a job is published once, whole, as decided.

Every attempt writes its own messages. Whatever happens, the topics hold those of the attempts that one commit named,
each once, and no others; and what was answered is there.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from danubius.broker.config import BrokerConfig
from danubius.errors import DanubiusError
from danubius.record.encode import encode
from danubius.shard.features.stages import logs as stage_logs
from danubius.shard.features.stages import publishing as stage_publishing
from danubius.shard.state.core.stages import Stage
from property.broker_lives import PAUSE_MS, SMALL_LEDGERS, BrokerLives
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable

TOPICS = ("/default/left", "/default/right")
JOBS: tuple[str, ...] = ("one", "two")
SEEDS = sized(20, 300)


class Attempt:
    """One attempt of a task, as its process knows it."""

    def __init__(self, job: str, batch: int, task: str) -> None:
        self.job, self.batch, self.task = job, batch, task
        self.number = 0
        self.sent: list[bytes] = []
        self.answered = 0
        self.is_failed = False


class World(BrokerLives):
    """The lives of brokers on one disk; tasks and drivers outlive them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, BrokerConfig(stage_idle_max_ms=10_000_000), SMALL_LEDGERS)
        self.batch = dict.fromkeys(JOBS, 0)
        self.attempts: dict[str, list[Attempt]] = {job: [] for job in JOBS}
        self.named: dict[tuple[str, int], list[Attempt]] = {}
        """By job and batch: what the driver's commit names, from the first time it asks."""
        self.done: set[tuple[str, int]] = set()
        self.count = 0
        self.boot()

    def boot(self) -> None:
        super().boot()
        self.topics = [self.host(name) for name in TOPICS]

    # ---------------------------------------------------------------- steps

    def open(self) -> None:
        job = self.dice.choice(JOBS)
        self.count += 1
        attempt = Attempt(job, self.batch[job], f"t{self.count}")

        def opened(result: Stage | DanubiusError | None) -> None:
            if isinstance(result, Stage):
                attempt.number = result.number
                self.attempts[job].append(attempt)

        self.ask(lambda: self.node.staging.open(job, attempt.batch, attempt.task, opened))

    def upload(self) -> None:
        attempts = self.attempts[self.dice.choice(JOBS)]
        if not attempts:
            return
        attempt = self.dice.choice(attempts)
        if attempt.is_failed or (attempt.job, attempt.batch) in self.named:
            return
        index = len(attempt.sent)
        if attempt.answered < index and self.dice.random() < 0.5:
            index = attempt.answered  # the answer did not come, so it is sent again
        else:
            payload = f"{attempt.task}/{index}/".encode() + bytes(self.dice.choice([0, 10, 3000]))
            attempt.sent.append(payload)
        batch = encode([attempt.sent[index]], publish_time_us=1)

        def stored(error: DanubiusError | None) -> None:
            if error is None:
                attempt.answered = max(attempt.answered, index + 1)
            else:
                attempt.is_failed = True

        topic = TOPICS[index % 2]
        number = attempt.number
        if not self.ask(
            lambda: self.node.staging.upload(number, index, topic, memoryview(batch), stored)
        ):
            attempt.is_failed = True

    def commit(self) -> None:
        job = self.dice.choice(JOBS)
        batch = self.batch[job]
        key = (job, batch)
        if key not in self.named:
            chosen = [
                attempt
                for attempt in self.attempts[job]
                if attempt.answered == len(attempt.sent)
                and not attempt.is_failed
                and self.dice.random() < 0.7
            ]
            if not any(attempt.sent for attempt in chosen) and self.dice.random() < 0.9:
                return  # an empty batch is rare
            self.named[key] = chosen
        stages = [(attempt.number, len(attempt.sent)) for attempt in self.named[key]]

        def committed(error: DanubiusError | None) -> None:
            if error is None:
                self.done.add(key)
                self.go_on(job, batch)

        self.ask(lambda: self.node.staging.commit(job, batch, stages, committed), job)

    def repeat(self) -> None:
        """A driver that did not hear the answer, or an old one that is back: with other stages, or none."""
        if self.done:
            job, batch = self.dice.choice(sorted(self.done))
            answers: list[object] = []
            self.node.staging.commit(job, batch, [], answers.append)
            assert answers == [None], "what is committed is answered at once"

    def abort(self) -> None:
        job = self.dice.choice(JOBS)
        if (job, self.batch[job]) not in self.named and self.attempts[job]:
            attempt = self.dice.choice(self.attempts[job])
            attempt.is_failed = True
            self.ask(
                lambda: self.node.staging.abort(
                    job, attempt.batch, [(attempt.number, 0)], lambda _: None
                )
            )

    def go_on(self, job: str, batch: int) -> None:
        if self.batch[job] == batch:
            self.batch[job] += 1
            self.attempts[job] = []

    def ask(self, call: Callable[[], object], job: str = "") -> bool:
        """A refusal is an answer: a driver whose batch is refused runs it again, with other attempts."""
        try:
            call()
        except DanubiusError:
            key = (job, self.batch.get(job, 0))
            if job and key in self.named and not self.is_decided(*key):
                del self.named[key]
                self.attempts[job] = []
            return False
        return True

    def is_decided(self, job: str, batch: int) -> bool:
        known = self.shard.jobs.by_name.get(job)
        if known is None:
            return False
        busy = self.node.staging.is_committing(job)
        return busy or known.committed >= batch or known.decision is not None

    def tend(self) -> None:
        self.clock.now_ms += self.dice.choice([0, 100, stage_logs.LOG_IDLE_MS + 1])
        self.shard.ticks.advance(10_000)

    def power_off_at_work(self) -> None:
        self.power_off_inside(self.upload, self.commit, self.open)

    # ---------------------------------------------------------------- what came

    def check(self) -> None:
        jobs = self.shard.jobs
        stages = [stage for job in jobs.by_name.values() for stage in job.stages.values()]
        assert jobs.stage_count == len(stages)
        assert jobs.bytes == sum(stage.bytes for stage in stages)
        for topic in self.shard.topics_by_id.values():
            topic.pipeline.sequencer.check()

    def came(self) -> Counter[bytes]:
        return Counter(payload for topic in self.topics for _, payload in self.messages(topic))

    def expected(self) -> Counter[bytes]:
        """Of batches that are committed, as the broker says."""
        return Counter(
            payload
            for (job, batch), attempts in self.named.items()
            if job in self.shard.jobs.by_name and batch <= self.shard.jobs.by_name[job].committed
            for attempt in attempts
            for payload in attempt.sent
        )

    def check_came(self) -> None:
        for job, batch in self.done:
            assert self.shard.jobs.by_name[job].committed >= batch, "what was answered is so"
        came, expected = self.came(), self.expected()
        assert not came - Counter(dict.fromkeys(came, 1)), "nothing comes twice"
        partial = Counter(
            payload
            for (job, _), attempts in self.named.items()
            if job in self.shard.jobs.by_name and self.shard.jobs.by_name[job].decision
            for attempt in attempts
            for payload in attempt.sent
        )
        assert not expected - came, "what is committed is there"
        assert not came - expected - partial, "nothing else is"

    def meanwhile(self) -> None:
        for _ in range(self.dice.randint(0, 3)):
            self.dice.choice([self.open, self.upload, self.commit, self.tend, self.turn])()


STEPS = {
    "open": 6,
    "upload": 30,
    "commit": 8,
    "repeat": 2,
    "abort": 1,
    "turn": 40,
    "tend": 3,
    "fault": 1,
    "heal": 2,
    "checkpoint": 1,
    "kill": 1,
    "power_off": 1,
    "power_off_at_work": 1,
}


@pytest.mark.grows
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_batch_is_published_once_and_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:  # every other world publishes in many records
        monkeypatch.setattr(stage_publishing, "WHOLE_BYTES", 0)
        monkeypatch.setattr(stage_publishing, "SLICE_BYTES", 1)
        monkeypatch.setattr(stage_publishing, "READ_BYTES", 1)
    monkeypatch.setattr(stage_logs, "SEAL_BYTES", 1)
    world = World(seed)
    try:
        for step in world.dice.choices(list(STEPS), weights=list(STEPS.values()), k=300):
            getattr(world, step)()
            world.check()
            if step in {"kill", "power_off", "power_off_at_work"}:
                world.check_came()
        world.kill()
        for _ in range(50):
            world.clock.now_ms += PAUSE_MS
            world.shard.ticks.advance(1000)
            world.settle()
        assert not any(job.decision for job in world.shard.jobs.by_name.values())
        world.check_came()
        assert world.came(), "something was published"
    finally:
        world.loop.close()
