"""Requests of gRPC as the front reads them: patience is counted in time that the front ran."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from danubius.edge.core.reading_turns import TurnBounds
from danubius.edge.grpc.front.requests import PATIENCE_S, TICK_S, Requests

ONE = TurnBounds(
    at_once_max=1, per_connection_max=1, waiting_max=5, patience_s=PATIENCE_S, whole_s=10.0
)


class Aborted(Exception):
    """As gRPC ends a call."""


class Call:
    """A call whose request comes when the test says so."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.request: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def peer(self) -> str:
        return self._peer

    async def read(self) -> bytes:
        return await self.request

    async def abort(self, code: object, details: str) -> None:
        raise Aborted(details)


async def test_time_in_which_the_front_did_not_run_is_nobodys_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = Requests(ONE, give_back=lambda: None)
    slow, other = Call("a"), Call("b")

    async def read(call: Any) -> bytes:
        return await requests.read(call)

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(read(slow))
        second = tasks.create_task(read(other))
        await asyncio.sleep(0)
        assert requests.turns.waiting == 1
        loop, begun = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda: begun + 60.0)
            requests._tick()  # as after a minute in which it had no core
        assert requests.turns.cut_off_total == 0
        slow.request.set_result(b"was there all the time")
        other.request.set_result(b"too")
        assert (await first, await second) == (b"was there all the time", b"too")


async def test_a_request_that_does_not_come_gives_way_after_so_many_ticks() -> None:
    requests = Requests(ONE, give_back=lambda: None)
    slow, other = Call("a"), Call("b")
    other.request.set_result(b"here")

    async def gives_way(call: Any) -> None:
        with pytest.raises(Aborted, match="did not arrive in time"):
            await requests.read(call)

    async def comes(call: Any) -> None:
        assert await requests.read(call) == b"here"

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(gives_way(slow))
        tasks.create_task(comes(other))
        await asyncio.sleep(0)
        assert requests.turns.waiting == 1
        for _ in range(int(PATIENCE_S / TICK_S) + 1):
            requests._tick()
