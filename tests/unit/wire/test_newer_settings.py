"""Settings that this version does not know, in commands of a newer peer."""

from __future__ import annotations

import re

import msgspec
import pytest

from danubius.errors import InvalidArgument, ProtocolViolation
from danubius.wire.codec import decode_command
from danubius.wire.commands import Error, Opcode

SPEC = {"policies": {"colour": 1}}


def test_a_reply_with_an_unknown_setting_is_an_error_of_that_reply() -> None:
    summary: list[object] = ["/default/t", SPEC, 0, 0, 0, 0, 0]
    described: list[object] = [summary, 0, [], []]
    command = decode_command(Opcode.TOPIC_DESCRIBED, msgspec.msgpack.encode(described))
    assert isinstance(command, Error)
    error = command.as_exception()
    assert isinstance(error, InvalidArgument)
    assert error.message == (
        "TOPIC_DESCRIBED sets 'colour' in policies, which this version does not know: upgrade it, or leave that out"
    )


def test_a_name_from_a_peer_is_not_repeated_without_bound() -> None:
    key = "x" * 10_000
    fields: list[object] = ["/default/t", "p", {"policies": {key: 1}}]
    command = decode_command(Opcode.OPEN_PRODUCER, msgspec.msgpack.encode(fields))
    assert isinstance(command, Error)
    assert len(command.message) < 300


def test_a_name_that_looks_like_a_message_is_quoted_as_it_is() -> None:
    key = "a` - at `b"
    fields: list[object] = ["/default/t", "p", {"policies": {key: 1}}]
    command = decode_command(Opcode.OPEN_PRODUCER, msgspec.msgpack.encode(fields))
    assert isinstance(command, Error)
    assert repr(key) in command.message


def test_everything_else_that_is_wrong_ends_the_connection() -> None:
    fields: list[object] = ["/default/t", "p", {"policies": {"ttl_ms": []}}]
    with pytest.raises(ProtocolViolation):
        decode_command(Opcode.OPEN_PRODUCER, msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ({"durabilty": "synced"}, "'durabilty' in the command, which .* mean 'durability'"),
        ({"retention": {"age": 5}}, "'age' in retention, which .* mean 'age_ms'"),
        ({"policies": {"tll_ms": 5}}, "'tll_ms' in policies, which .* mean 'ttl_ms'"),
        (
            {"policies": {"failure": {"max_redeliveries": 5}}},
            "'max_redeliveries' in failure, which .* mean 'redeliveries_max'",
        ),
    ],
)
@pytest.mark.parametrize("opcode", [Opcode.CREATE_TOPIC, Opcode.OPEN_PRODUCER])
def test_the_nearest_name_is_told(opcode: Opcode, spec: object, meant: str) -> None:
    fields = ["/default/t", spec] if opcode is Opcode.CREATE_TOPIC else ["/default/t", "p", spec]
    command = decode_command(opcode, msgspec.msgpack.encode(fields))
    assert isinstance(command, Error)
    assert re.search(meant, command.message)
