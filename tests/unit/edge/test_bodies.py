"""Bodies that come late, slowly or not at all, and what they leave to others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from danubius.edge.rest.bodies import Bodies, BodyBounds
from danubius.edge.rest.bounds import SMALL_BODY_BYTES
from danubius.edge.rest.problems import BodyTimeout, LengthExceeded
from danubius.errors import Overloaded

LARGE = SMALL_BODY_BYTES + 1
PATIENT = BodyBounds(first_s=3600.0, whole_s=3600.0)


class Sender:
    """The other end of a request: sends what it is told, and says when it is waited for."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._sent = asyncio.Event()
        self.is_awaited = asyncio.Event()

    def send(self, body: bytes, *, more: bool = True) -> None:
        self._messages.append({"type": "http.request", "body": body, "more_body": more})
        self._sent.set()

    async def receive(self) -> dict[str, Any]:
        while not self._messages:
            self.is_awaited.set()
            self._sent.clear()
            await self._sent.wait()
        return self._messages.pop(0)

    def request(self) -> Request:
        return Request({"type": "http", "method": "POST", "headers": []}, self.receive)


async def begin(
    tasks: asyncio.TaskGroup, bodies: Bodies, body: bytes
) -> tuple[Sender, asyncio.Task[bytes]]:
    """A body of which this much came, and no more for now."""
    sender = Sender()
    if body:
        sender.send(body)
    task = tasks.create_task(bodies.read(sender.request(), 1 << 20))
    await sender.is_awaited.wait()
    return sender, task


async def whole(bodies: Bodies, body: bytes, most: int = 1 << 20) -> bytes:
    sender = Sender()
    sender.send(body, more=False)
    return await bodies.read(sender.request(), most)


async def test_bodies_that_were_announced_and_do_not_come_hold_nobody_up() -> None:
    bodies = Bodies(PATIENT._replace(bytes_max=LARGE))
    async with asyncio.TaskGroup() as tasks:
        waiting = [await begin(tasks, bodies, b"") for _ in range(100)]
        assert len(await whole(bodies, bytes(LARGE))) == LARGE
        for sender, _ in waiting:
            sender.send(b"late", more=False)
    assert {task.result() for _, task in waiting} == {b"late"}
    assert len(bodies.arriving) == 0


async def test_a_body_of_which_nothing_comes_is_given_up() -> None:
    bodies = Bodies(PATIENT._replace(first_s=0.0))
    with pytest.raises(BodyTimeout, match="begin it within 0 s"):
        await bodies.read(Sender().request(), 100)
    assert len(bodies.arriving) == 0


def test_who_sends_slowly_has_less_time_than_who_sends_fast() -> None:
    bounds = BodyBounds(first_s=5.0, whole_s=30.0, bytes_per_s=1000)
    assert bounds.deadline_s(0) == 5.0
    assert bounds.deadline_s(10_000) == 15.0
    assert bounds.deadline_s(1 << 30) == 30.0


async def test_a_large_body_that_stalls_gives_its_room_to_another() -> None:
    bodies = Bodies(PATIENT._replace(bytes_max=LARGE, patience_s=0.0))
    stalled = Sender()
    stalled.send(bytes(LARGE))

    async def stall() -> None:
        with pytest.raises(BodyTimeout, match="others got its room"):
            await bodies.read(stalled.request(), 1 << 20)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stall())
        await stalled.is_awaited.wait()
        assert len(await whole(bodies, bytes(LARGE))) == LARGE
    assert bodies.arriving.held_bytes == 0


async def test_while_all_are_quick_the_newest_is_asked_to_come_again() -> None:
    bodies = Bodies(PATIENT._replace(bytes_max=LARGE, patience_s=3600.0))
    async with asyncio.TaskGroup() as tasks:
        sender, task = await begin(tasks, bodies, bytes(LARGE))
        with pytest.raises(Overloaded, match="try again"):
            await whole(bodies, bytes(LARGE))
        assert await whole(bodies, b"small") == b"small"
        sender.send(b"", more=False)
    assert len(task.result()) == LARGE


async def test_of_too_many_the_oldest_silent_one_goes() -> None:
    bodies = Bodies(PATIENT._replace(count_max=2))
    silent = Sender()

    async def wait() -> None:
        with pytest.raises(BodyTimeout):
            await bodies.read(silent.request(), 100)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wait())
        await silent.is_awaited.wait()
        sender, task = await begin(tasks, bodies, b"x")
        assert await whole(bodies, b"new") == b"new"
        sender.send(b"y", more=False)
    assert task.result() == b"xy"


async def test_a_body_that_is_too_long_is_read_to_its_end_and_not_held() -> None:
    bodies = Bodies(PATIENT)
    with pytest.raises(LengthExceeded, match="more than 10 bytes"):
        await whole(bodies, bytes(11), most=10)
    assert bodies.arriving.held_bytes == 0
