"""A connection that always has more to read is read from in turns, so that others come in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from danubius.runtime.net import StreamProtocol, dial, listen
from patience import HANG_S

if TYPE_CHECKING:
    from danubius.errors import DanubiusError

KIB = 1024
WINDOW_BYTES = 64 * KIB
TURN_BYTES = 128 * KIB
SENT_BYTES = 8 * 1024 * KIB

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


class Sink:
    """Takes bytes in windows of one size, and notes in which turn of the loop they came."""

    def __init__(self) -> None:
        self._window = memoryview(bytearray(WINDOW_BYTES))
        self.turn = 0
        self.by_turn: dict[int, int] = {}
        self.total = 0
        self.all_there = asyncio.Event()

    def get_buffer(self, size_hint: int) -> memoryview:
        del size_hint
        return self._window

    def buffer_updated(self, count: int) -> None:
        self.by_turn[self.turn] = self.by_turn.get(self.turn, 0) + count
        self.total += count
        if self.total >= SENT_BYTES:
            self.all_there.set()

    def next_event(self) -> None:
        return None

    def receive_eof(self) -> None:
        """It has no frames that could be cut."""

    def discard(self) -> None:
        """It has no memory to give back."""

    def tick(self) -> None:
        self.turn += 1
        if not self.all_there.is_set():
            asyncio.get_running_loop().call_soon(self.tick)


def protocol(sink: Sink, turn_bytes_max: int) -> StreamProtocol[None]:
    def refused(error: DanubiusError) -> None:
        raise error

    return StreamProtocol(
        sink,
        lambda _event: None,
        on_closed=lambda _reason: None,
        on_protocol_error=refused,
        turn_bytes_max=turn_bytes_max,
    )


async def receive(turn_bytes_max: int) -> Sink:
    """Let a peer fill the socket, then read all it sends."""
    receiver, sender = Sink(), Sink()
    receiving = protocol(receiver, turn_bytes_max)
    sending = protocol(sender, 0)
    receiving.pause_reading("not yet")
    listener = await listen("127.0.0.1", 0, lambda: receiving, backlog=1)
    try:
        async with asyncio.timeout(HANG_S):
            await dial("127.0.0.1", listener.port, lambda: sending, timeout_s=HANG_S)
            sending.write([bytes(SENT_BYTES)])
            sending.flush()
            await asyncio.sleep(
                0
            )  # the kernel has taken what fits: more than a turn's worth is waiting
            receiver.tick()
            receiving.resume_reading("not yet")
            await receiver.all_there.wait()
    finally:
        listener.close()
        sending.abort()
        receiving.abort()
    return receiver


async def test_a_turn_ends_after_so_many_bytes_and_nothing_is_lost() -> None:
    sink = await receive(TURN_BYTES)

    assert sink.total == SENT_BYTES
    assert max(sink.by_turn.values()) < TURN_BYTES + WINDOW_BYTES
    assert len(sink.by_turn) >= SENT_BYTES // TURN_BYTES


async def test_without_a_bound_all_is_read_just_the_same() -> None:
    sink = await receive(0)

    assert sink.total == SENT_BYTES
