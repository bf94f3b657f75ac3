"""Commands to MessagePack and back, one prepared decoder per opcode.

Invariant: whatever bytes come in, a command of the right type with fields of the right types comes out, or
ProtocolViolation.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danubius.errors import InvariantViolation, ProtocolViolation
from danubius.wire.commands import AnyCommand, Opcode

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMANDS: Final[dict[Opcode, type[AnyCommand]]] = {
    command.opcode: command for command in typing.get_args(AnyCommand)
}
"""Every command by its opcode."""

assert set(COMMANDS) == set(Opcode)

Decoder = msgspec.msgpack.Decoder[Any]  # of the opcode's own type, which a table cannot express

DECODERS: Final[Mapping[int, Decoder]] = {
    int(opcode): msgspec.msgpack.Decoder(command) for opcode, command in COMMANDS.items()
}

encode_command: Final = msgspec.msgpack.Encoder().encode


def decode_command(opcode: int, meta: bytes) -> AnyCommand:
    """Read one command."""
    decoder = DECODERS.get(opcode)
    if decoder is None:
        raise InvariantViolation(f"opcode {opcode} has no command: it must be refused earlier")
    try:
        return decoder.decode(meta)
    except (ValueError, RecursionError) as problem:  # msgspec's errors and UnicodeDecodeError
        name = Opcode(opcode).name
        raise ProtocolViolation(
            f"the command of a {name} frame is malformed: {problem}"
        ) from problem
