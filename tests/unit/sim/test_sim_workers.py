"""Workers in virtual time: order, waits, and what becomes of work that fails."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

import pytest
from sim_worlds import Small

from danubius.sim.disk import PowerLost
from danubius.sim.workers import LoopThreads

if TYPE_CHECKING:
    from collections.abc import Callable

LONG_S: Final = 10.0


def _no_crash(items: list[int], crash: BaseException) -> None:
    raise AssertionError(items) from crash


def _always(_item: int) -> bool:
    return True


def test_items_are_handled_in_order_and_reported_later() -> None:
    small = Small()
    handled: list[int] = []
    heard: list[int] = []

    async def main() -> None:
        loop = small.loop

        def handle(items: list[int], _now_ns: int) -> None:
            handled.extend(items)
            for item in items:
                loop.call_soon_threadsafe(heard.append, item)

        worker = LoopThreads(loop, random.Random(0))("worker", handle, on_crash=_no_crash)
        worker.start()
        for item in range(5):
            worker.put(item)
            assert not worker.try_run(99, _always), "it has something to do"
        assert handled == []
        await asyncio.sleep(LONG_S)
        assert handled == [0, 1, 2, 3, 4]
        assert heard == [0, 1, 2, 3, 4]
        assert worker.try_run(5, _always)
        assert handled[-1] == 5
        worker.put(6)
        assert worker.stop()
        assert handled[-1] == 6

    small.run(main())


def test_a_handler_is_called_when_it_asked_to_be() -> None:
    small = Small()
    calls: list[tuple[list[int], float]] = []

    def handle(items: list[int], now_ns: int) -> int | None:
        calls.append((list(items), now_ns / 1e9))
        return now_ns + 1_000_000_000 if items else None

    async def main() -> None:
        worker = LoopThreads(small.loop, random.Random(0))("worker", handle, on_crash=_no_crash)
        worker.put(1)
        await asyncio.sleep(LONG_S)

    small.run(main())
    assert [items for items, _ in calls] == [[1], []]
    assert calls[1][1] - calls[0][1] == pytest.approx(1.0, abs=0.01)


def test_a_wait_is_for_work_that_is_done_or_under_way() -> None:
    small = Small()
    handled: list[int] = []

    def handle(items: list[int], _now_ns: int) -> None:
        handled.extend(items)

    async def main() -> None:
        worker = LoopThreads(small.loop, random.Random(0))("worker", handle, on_crash=_no_crash)
        done = 0
        for item in range(100):
            assert worker.put_and_wait(item, _always, 0.001)
            done += handled[-1:] == [item]
            await asyncio.sleep(LONG_S / 10)
        assert handled == list(range(100))
        assert 50 < done < 90

    small.run(main())


def test_a_bug_in_a_handler_is_raised_and_everybody_hears_of_it() -> None:
    small = Small()
    given_up: list[int] = []

    def handle(items: list[int], _now_ns: int) -> None:
        raise RuntimeError(items)

    async def main(on_crash: Callable[[list[int], BaseException], None]) -> None:
        worker = LoopThreads(small.loop, random.Random(0))("worker", handle, on_crash=on_crash)
        worker.put(1)
        await asyncio.sleep(LONG_S)
        worker.put(2)
        assert isinstance(small.problems.pop(), RuntimeError)

    small.run(main(lambda items, _: given_up.extend(items)))
    assert given_up == [1, 2]


def test_a_power_loss_ends_the_work_and_says_nothing() -> None:
    small = Small()

    def handle(_items: list[int], _now_ns: int) -> None:
        raise PowerLost

    async def main() -> None:
        worker = LoopThreads(small.loop, random.Random(0))("worker", handle, on_crash=_no_crash)
        worker.put(1)
        await asyncio.sleep(LONG_S)

    small.run(main())
