"""Commands to MessagePack and back, one prepared decoder per opcode.

Invariant: whatever bytes come in, a command of the right type with fields of the right types comes out, or
ProtocolViolation. One that is well formed and has a setting which this version does not know comes out as the Error
that is its answer: a newer peer is told, and the connection lives on.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danubius.errors import InvalidArgument, InvariantViolation, ProtocolViolation
from danubius.model.unknown_fields import find_unknown
from danubius.wire.commands import AnyCommand, Error, Opcode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from danubius.model.unknown_fields import UnknownField

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
        unknown = find_unknown(problem, COMMANDS[Opcode(opcode)])
        if unknown is not None:
            return _refuse_setting(name, unknown)
        raise ProtocolViolation(
            f"the command of a {name} frame is malformed: {problem}"
        ) from problem


def _refuse_setting(name: str, unknown: UnknownField) -> Error:
    """What a command is answered with that sets what this version does not have."""
    meant = f"; did you mean {unknown.nearest!r}?" if unknown.nearest else ""
    return Error.of(
        InvalidArgument(
            f"{name} sets {unknown.name!r} in {unknown.where or 'the command'}, which this version does not know: "
            f"upgrade it, or leave that out{meant}"
        )
    )
