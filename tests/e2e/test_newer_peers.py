"""A newer client that sets what this broker does not know is told so, by its request, and stays connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from danubius.errors import InvalidArgument, ProtocolViolation
from danubius.wire.commands import Opcode
from e2e.raw_wire import RawPeer

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

SPEC = {"policies": {"ttl_ms": 1000, "colour": "blue"}}
EARLIEST = {"type": "earliest"}
FAILURE = {"delay_ms": 1000, "colour": "blue"}


@pytest.mark.parametrize(
    ("opcode", "fields"),
    [
        (Opcode.CREATE_TOPIC, ("/default/newer", SPEC, False)),
        (Opcode.OPEN_PRODUCER, ("/default/newer", "p", SPEC)),
        (Opcode.SUBSCRIBE, ("/default/newer", "s", "shared", "c", EARLIEST, 0, False, (), FAILURE)),
    ],
)
async def test_an_unknown_setting_is_answered(
    broker: BrokerProcess, opcode: Opcode, fields: tuple[Any, ...]
) -> None:
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        answer = await peer.call(opcode, *fields)
        assert answer.opcode == Opcode.ERROR
        assert answer.fields[0] == InvalidArgument.code
        assert "sets 'colour' in " in answer.fields[1]
        assert "upgrade" in answer.fields[1]
        assert (await peer.call(Opcode.PING)).opcode == Opcode.PONG
        missing = await peer.call(Opcode.DESCRIBE_TOPIC, "/default/newer")
        assert missing.opcode == Opcode.ERROR, "nothing was made"


async def test_a_wrong_type_still_ends_the_connection(broker: BrokerProcess) -> None:
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        answer = await peer.call(
            Opcode.CREATE_TOPIC, "/default/newer", {"policies": {"ttl_ms": "soon"}}, False
        )
        assert answer.opcode == Opcode.ERROR
        assert answer.fields[0] == ProtocolViolation.code
