"""When the loop waits awake, and that it sleeps otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.runtime.busy_poll import (
    CLOSE_NS_MAX,
    CONFIDENCE_MAX,
    SMALL_BYTES,
    START_TURNS,
    WAIT_NS_MAX,
    BusyPoll,
    Eagerness,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def converse(eagerness: Eagerness, reads: int, *, start_ns: int = 10**9) -> tuple[int, bool]:
    """Small reads, each close to the one before; the time of the last, and what it decided."""
    now_ns, polls = start_ns, False
    eagerness.on_turn(100, now_ns)
    for _ in range(reads):
        now_ns += CLOSE_NS_MAX
        polls = eagerness.on_turn(100, now_ns)
    return now_ns, polls


def test_polling_begins_after_a_run_of_close_small_reads() -> None:
    assert converse(Eagerness(), START_TURNS - 1)[1] is False
    assert converse(Eagerness(), START_TURNS)[1] is True


def test_reads_that_are_far_apart_never_make_it_poll() -> None:
    eagerness = Eagerness()
    for turn in range(100):
        assert not eagerness.on_turn(100, 10**9 + turn * (CLOSE_NS_MAX + 1))


def test_one_large_read_ends_it() -> None:
    eagerness = Eagerness()
    now_ns, _ = converse(eagerness, CONFIDENCE_MAX)
    assert not eagerness.on_turn(SMALL_BYTES + 1, now_ns)
    assert not eagerness.on_nothing(now_ns)


def test_it_waits_no_longer_than_its_bound() -> None:
    eagerness = Eagerness()
    now_ns, _ = converse(eagerness, START_TURNS)
    assert eagerness.on_nothing(now_ns + WAIT_NS_MAX)
    assert not eagerness.on_nothing(now_ns + WAIT_NS_MAX + 1)


def test_waits_in_vain_end_it_even_if_the_reads_stay_close() -> None:
    """A peer that is always a little later than the bound must not cost a core."""
    eagerness = Eagerness()
    now_ns, _ = converse(eagerness, CONFIDENCE_MAX)
    waits = 0
    for _ in range(200):
        if eagerness.on_nothing(now_ns + 1):
            waits += 1
            eagerness.on_nothing(now_ns + WAIT_NS_MAX + 1)
        now_ns += WAIT_NS_MAX + 2
        eagerness.on_turn(100, now_ns)
    assert waits < 40


class CountedTurns:
    """Runs what is to be called soon when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)


def test_a_loop_that_nobody_asks_any_more_goes_to_sleep() -> None:
    loop = CountedTurns()
    poll = BusyPoll(loop)
    for _ in range(START_TURNS + 1):
        poll.on_turn(100)
    assert len(loop.due) == 1, "one poll is under way, whatever is read"
    while loop.due:
        loop.due.pop()()  # the real clock goes on, and ends it
    assert not poll.is_polling


def test_nobody_stays_awake_once_the_answer_is_there() -> None:
    loop = CountedTurns()
    waiting = [True]
    poll = BusyPoll(loop, 10**12, lambda: waiting[0])
    for _ in range(START_TURNS + 1):
        poll.on_turn(0)
    loop.due.pop()()
    assert len(loop.due) == 1, "it waits, and there is an answer to wait for"
    waiting[0] = False
    loop.due.pop()()
    assert not loop.due
    poll.on_turn(0)
    assert poll.is_polling, "the wait was not in vain: the next begins at once"
