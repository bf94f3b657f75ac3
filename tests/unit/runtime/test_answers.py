"""Waiting for a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from danubius.errors import DanubiusError, Overloaded
from danubius.runtime.answers import answer_of

Answered = Callable[[int | DanubiusError], None]


async def test_an_answer_at_once_is_returned() -> None:
    assert await answer_of(lambda answered: answered(7)) == 7


async def test_an_error_is_raised() -> None:
    def start(answered: Callable[[DanubiusError | None], None]) -> None:
        asyncio.get_running_loop().call_soon(answered, Overloaded("busy"))

    with pytest.raises(Overloaded, match="busy"):
        await answer_of(start)


async def test_what_comes_behind_the_first_answer_is_passed_over() -> None:
    def start(answered: Answered) -> None:
        answered(1)
        answered(2)
        answered(Overloaded("busy"))

    assert await answer_of(start) == 1


async def test_an_answer_after_nobody_waits_any_more_is_passed_over() -> None:
    kept: list[Answered] = []
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(answer_of(kept.append))
        await asyncio.sleep(0)
        waiting.cancel()
    kept[0](1)
    assert waiting.cancelled()
