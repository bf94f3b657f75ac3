"""The frame's layout, byte by byte, as docs/internals/wire-protocol.md states it."""

from __future__ import annotations

import struct

import google_crc32c

from danubius.wire.codec import COMMANDS, decode_command, encode_command
from danubius.wire.commands import Ack, Hello, Opcode, Ping, Produce
from danubius.wire.connection import Connection
from danubius.wire.frame import HEADER_BYTES, encode_head
from danubius.wire.states import LEGAL, ConnectionState, Role


def test_header_fields_are_where_the_specification_puts_them() -> None:
    meta = encode_command(Produce(5))
    head = encode_head(Opcode.PRODUCE, 0x01020304, meta, 80)

    assert struct.unpack("<IBBHII", head[:16]) == (len(head) - 4 + 80, 34, 0, 0, 0x01020304, 2)
    assert head[20:24] == b"DNW\x01"
    assert head[24:26] == b"\x91\x05"
    assert head[26:] == bytes(6)


def test_checksum_covers_the_first_16_bytes_and_the_command() -> None:
    meta = encode_command(Ack(1, [(0, 10)]))
    head = encode_head(Opcode.ACK, 9, meta, 0)

    expected: int = google_crc32c.value(head[:16] + meta)  # pyright: ignore[reportUnknownVariableType]
    assert struct.unpack_from("<I", head, 16)[0] == expected


def test_frozen_hello_never_changes() -> None:
    frame = b"".join(Connection(Role.CLIENT).send(Hello(1, 1, "doc"), 1))

    assert frame.hex(" ") == (
        "1c 00 00 00 01 00 00 00 01 00 00 00 07 00 00 00"
        " 4a fa 5f 09 44 4e 57 01 93 01 01 a3 64 6f 63 00"
    )


def test_payload_starts_at_a_multiple_of_eight_for_any_command_length() -> None:
    for size in range(40):
        head = encode_head(Opcode.PING, 0, bytes(size), 0)
        assert len(head) % 8 == 0
        assert len(head) - HEADER_BYTES - size < 8


def test_every_opcode_has_a_command_and_a_legal_sender() -> None:
    assert set(COMMANDS) == set(Opcode)
    for opcode in Opcode:
        assert any(opcode in LEGAL[state][role] for state in ConnectionState for role in Role)


def test_unknown_trailing_fields_are_ignored() -> None:
    assert decode_command(Opcode.PING, b"\x93\x01\x02\x03") == Ping()


def test_missing_trailing_fields_get_their_defaults() -> None:
    full = decode_command(Opcode.NACK, b"\x93\x01\x91\x92\x00\x05\x07")
    short = decode_command(Opcode.NACK, b"\x92\x01\x91\x92\x00\x05")

    assert full.delay_ms == 7  # pyright: ignore[reportAttributeAccessIssue]
    assert short.delay_ms == 0  # pyright: ignore[reportAttributeAccessIssue]
