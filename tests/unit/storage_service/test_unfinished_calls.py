"""Calls whose request does not come to its end: they hold no worker for long, and others are served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from danubius.ledger.entry import LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.record.ledger_file import LedgerHeader
from danubius.storage_service.bounds import CROWD_SECONDS_MAX, RECEIVE_SECONDS_MAX, WORKERS
from danubius.storage_service.messages import SERVICE
from danubius.storage_service.receiving import Receiving, overdue
from e2e.raw_http2 import Http2Peer
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unit.storage_service.conftest import Serve

REF = LedgerRef(7, 1)
HEADER = LedgerHeader(7, 1, 0, 1, 0)


@pytest.mark.parametrize("path", [f"/{SERVICE.full_name}/Append", "/grpc.health.v1.Health/Check"])
async def test_as_many_unfinished_calls_as_there_are_workers_stop_nobody(
    serve: Serve, path: str
) -> None:
    memory = MemoryLedgerStore()
    served = serve(lambda _: memory)
    async with Http2Peer(served.port) as peer:
        await peer.leave_unfinished(path, 2 * WORKERS, 1000, deadline="100S")
        client = served.connect()
        async with asyncio.timeout(HANG_S):
            await asyncio.to_thread(client.create, REF, HEADER, [b"x"])


def test_while_every_worker_waits_the_time_is_shorter() -> None:
    began = dict.fromkeys(range(4), 0.0) | {9: 5.0}
    assert overdue(began, RECEIVE_SECONDS_MAX - 0.1, 6) == []
    assert overdue(began, RECEIVE_SECONDS_MAX, 6) == [0, 1, 2, 3]
    assert overdue(began, CROWD_SECONDS_MAX, 5) == [0, 1, 2, 3]


class Call:
    """A call that notes that it was cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        assert not self.is_cancelled
        self.is_cancelled = True


def test_a_call_that_waits_for_its_message_is_cancelled_once_and_one_that_works_is_not() -> None:
    now = 0.0
    receiving = Receiving(workers=1, clock_s=lambda: now)
    call = Call()

    def requests() -> Iterator[Any]:
        nonlocal now
        now += CROWD_SECONDS_MAX / 2
        receiving.cancel_overdue()
        yield "first"
        now += CROWD_SECONDS_MAX
        receiving.cancel_overdue()
        receiving.cancel_overdue()
        yield "second"

    received = receiving.each(requests(), call)
    assert next(received) == "first"
    now += 100.0
    receiving.cancel_overdue()
    assert not call.is_cancelled
    assert next(received) == "second"
    assert call.is_cancelled
    assert list(received) == []
