"""What the client makes of the broker's Error frames: whom they concern, and what they carry."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.wire.commands import Error, Fetch, OffsetResolved, Opcode, ResolveOffset, Subscribe
from patience import HANG_S

if TYPE_CHECKING:
    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = "/default/t"


async def test_a_refused_acknowledgement_is_logged_by_name_and_the_connection_lives_on(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "danubius.client.connection.session")
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        code = danubius.InvalidArgument.code
        refusal = Error(code, "the range is empty", 0, Opcode.ACK, broker.handle)
        broker.peers[-1].send(refusal)
        broker.deliver(0, [b"after it"])
        assert (await consumer.receive()).payload == b"after it"
    assert len(broker.commands(Subscribe)) == 1, "nothing was lost"
    [record] = [one for one in caplog.records if one.name == "danubius.client.connection.session"]
    fields = vars(record)
    assert (fields["command"], fields["handle"]) == ("ACK", broker.handle)
    assert "the range is empty" in fields["error"]


async def test_an_error_about_no_command_still_ends_the_connection(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        peer = broker.peers[-1]
        peer.send(Error(danubius.ProtocolViolation.code, "no such frame", 0))
        peer.protocol.close()
        await broker.arrived(Subscribe, 2)
        broker.deliver(0, [b"on a new connection"])
        assert (await consumer.receive()).payload == b"on a new connection"


async def test_a_reader_learns_which_offsets_are_damaged(broker: ScriptedBroker) -> None:
    def refuse(peer: Peer, frame: Frame) -> None:
        error = Error(danubius.LedgerDamaged.code, "damaged", 0, 0, 0, 100, 110)
        peer.send(error, frame.correlation_id)

    def resolve(peer: Peer, frame: Frame) -> None:
        peer.send(OffsetResolved(100, 0, 200), frame.correlation_id)

    broker.on[Fetch] = refuse
    broker.on[ResolveOffset] = resolve
    async with (
        danubius.connect(broker.url) as client,
        client.reader(TOPIC, start=100) as reader,
    ):
        with pytest.raises(danubius.LedgerDamaged) as caught:
            await reader.read_batch(timeout=HANG_S)
    assert (caught.value.first, caught.value.end) == (100, 110)
