"""An event loop in virtual time: order, jumps, ends, and processes that die or stand still."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from sim_worlds import Small

from danubius.sim.loop import START_S, TURN_S, Deadlock, Endless, SimLoop

HOUR_S: Final = 600.0
BLINK_S: Final = 0.001
SECOND_S: Final = 1.0
STOPPED_S: Final = 5.0


def test_time_jumps_to_the_next_timer() -> None:
    async def sleep() -> float:
        await asyncio.sleep(HOUR_S)
        return asyncio.get_running_loop().time()

    assert Small().run(sleep()) == pytest.approx(START_S + HOUR_S, abs=10 * TURN_S)


def test_callbacks_run_in_their_order_and_timers_in_that_of_their_moments() -> None:
    order: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, order.append, "late")
        loop.call_later(1.0, order.append, "early")
        loop.call_later(1.0, order.append, "early too")
        dropped = loop.call_later(1.5, order.append, "never")
        loop.call_soon(order.append, "now")
        loop.call_soon(order.append, "now too")
        dropped.cancel()
        await asyncio.sleep(HOUR_S)

    Small().run(main())
    assert order == ["now", "now too", "early", "early too", "late"]


def test_waiting_for_what_cannot_come_is_said() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        Small().run(wait())


def test_time_without_end_is_said() -> None:
    async def sleep_on() -> None:
        while True:  # noqa: ASYNC110  # time is all that comes
            await asyncio.sleep(HOUR_S)

    with pytest.raises(Endless):
        Small().run(sleep_on())


def test_who_polls_sees_time_pass() -> None:
    async def poll() -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + BLINK_S
        while loop.time() < until_s:  # noqa: ASYNC110  # as who polls does
            await asyncio.sleep(0)

    Small().run(poll())


def test_what_runs_on_a_thread_is_answered_later_and_its_posts_with_it() -> None:
    order: list[str] = []

    async def main() -> float:
        loop = asyncio.get_running_loop()
        before_s = loop.time()

        def work() -> int:
            loop.call_soon_threadsafe(order.append, "posted")
            order.append("worked")
            return 42

        assert await asyncio.to_thread(work) == 42
        return loop.time() - before_s

    took_s = Small().run(main())
    assert order == ["worked", "posted"]
    assert took_s > TURN_S


def test_what_fails_on_a_thread_fails_for_who_asked() -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)

    Small().run(main())


def test_a_dead_process_runs_nothing_and_unwinds_nothing() -> None:
    seen: list[str] = []
    small = Small()

    async def live() -> None:
        asyncio.get_running_loop().call_later(2.0, seen.append, "timer")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(HOUR_S))
        finally:
            seen.append("finally")

    async def main() -> None:
        process = small.loop.begin("host")
        small.loop.run_in(process, live())
        await asyncio.sleep(SECOND_S)
        process.die()
        await asyncio.sleep(HOUR_S)
        assert seen == []

    small.run(main())


def test_a_stopped_process_does_later_what_was_due() -> None:
    seen: list[float] = []
    small = Small()

    async def live() -> None:
        await asyncio.sleep(SECOND_S)
        seen.append(small.loop.time() - START_S)

    async def main() -> None:
        process = small.loop.begin("host")
        task = small.loop.run_in(process, live())
        await asyncio.sleep(SECOND_S / 2)
        small.loop.pause(process)
        await asyncio.sleep(STOPPED_S)
        assert seen == []
        small.loop.go_on(process)
        await task

    small.run(main())
    assert seen == [pytest.approx(5.5, abs=0.01)]


def test_cancelled_timers_do_not_pile_up() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        for _ in range(10_000):
            loop.call_later(HOUR_S, main).cancel()
        return len(loop._later)

    assert Small().run(main()) < 2000
