"""A damaged ledger as a client of any language meets it: the error says in numbers where to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import danubius
from danubius.wire.commands import Opcode
from e2e.raw_wire import RawFrame, RawPeer
from e2e.storage_files import find_batches, flip
from e2e.traffic import numbered

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.conftest import StartBroker

LEDGER_DAMAGED = 601


async def fetch(peer: RawPeer, topic: str, offset: int) -> RawFrame:
    start: dict[str, Any] = {"type": "offset", "offset": offset}
    return await peer.call(Opcode.FETCH, topic, start, 1_000_000, 0, False)


async def test_a_fetch_learns_which_offsets_are_damaged(
    start_broker: StartBroker, data_dir: Path, topic: str
) -> None:
    broker = start_broker()
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        for group in (numbered(100), [b"damaged %d" % n for n in range(10)], numbered(50)):
            await producer.send_many(group)
    assert broker.stop() == 0
    for place in find_batches(data_dir, b"damaged 5"):
        if place.path.suffix in {".ledger", ".pool"}:
            flip(place.path, place.marker)
    broker.start()
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        before = await fetch(peer, topic, 0)
        assert before.opcode == Opcode.FETCHED
        assert before.fields[1] == 100
        refused = await fetch(peer, topic, 100)
        assert refused.opcode == Opcode.ERROR
        assert refused.fields[0] == LEDGER_DAMAGED
        first, end = refused.fields[5:7]
        assert (first, end) == (100, 110)
        behind = await fetch(peer, topic, end)
        assert behind.opcode == Opcode.FETCHED
        assert behind.fields[:2] == [110, 160]
