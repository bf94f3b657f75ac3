"""Offloading, killed at every step: nothing is lost, and after the next cycles nothing is left over.

The steps are not listed by hand. A whole history (publish, roll, upload, verify, write down, reclaim, delete files,
trim, remove objects) is run once and its steps are counted: every call of the object store, every answer of a thread
to the loop, every operation of the disk. Then it is run again for each of them, and ends there.
"""

from __future__ import annotations

import pytest

from danubius.sim.disk import PowerLost
from property.tier_lives import TierLives


class Killed(BaseException):
    """The process is gone."""


class CountedLives(TierLives):
    """Counts its steps, and dies before one of them."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.steps = 0
        self.dies_at = dies_at
        super().__init__()
        for method in ("put", "get", "stat", "list", "delete"):
            self.objects.before[method] = self.step

    def step(self, _what: object = None) -> None:
        self.steps += 1
        if self.steps == self.dies_at:
            raise Killed

    def deliver(self) -> None:
        for _ in range(len(self.posted)):
            self.step()
            self.posted.popleft()()

    def history(self) -> None:
        """From the first message to the removal of the first objects."""
        self.boot()
        self.publish(30)
        self.settle()
        self.cycle(2)
        self.advance()
        # What was open in that snapshot is sealed behind it.
        self.publish(12)
        self.settle()
        self.cycle(2)
        self.trim(self.log.ledgers[2].base_offset)
        self.cycle()

    def live_on(self) -> None:
        """A new process goes on, and brings it to an end."""
        self.dies_at = None
        self.files.heal()
        self.boot()
        self.compare()
        self.publish(20)
        self.settle()
        self.offload_all()
        self.cycle()
        self.compare()
        self.check_places()
        assert self.stored(), "it was offloaded in the end"


def counted() -> CountedLives:
    whole = CountedLives()
    whole.history()
    assert whole.is_done()
    assert {"put", "get", "stat", "delete", "list"} <= whole.objects.calls.keys()
    assert whole.offloading.figures.removals >= 2
    whole.loop.close()
    return whole


@pytest.mark.parametrize("share", range(4))
def test_a_kill_at_every_step_loses_nothing_and_leaves_nothing_over(share: int) -> None:
    steps = counted().steps
    for dies_at in range(1 + share, steps + 1, 4):
        lives = CountedLives(dies_at)
        with pytest.raises(Killed):
            lives.history()
        lives.files.kill()
        lives.live_on()
        lives.loop.close()


@pytest.mark.parametrize("share", range(2))
def test_a_power_loss_at_any_operation_of_the_disk_loses_nothing(share: int) -> None:
    for dies_at in range(share, 120, 6):
        lives = CountedLives()
        lives.boot()
        lives.publish(40)
        lives.settle()
        lives.files.lose_power_after(dies_at)
        with pytest.raises(PowerLost):
            for _ in range(100):
                lives.cycle()
                lives.publish(4)
        lives.files.crash(dies_at)
        lives.live_on()
        lives.loop.close()
