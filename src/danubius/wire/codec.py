"""Commands to MessagePack and back, one prepared decoder per opcode.

Invariant: whatever bytes come in, a command of the right type with fields of the right types comes out, or
ProtocolViolation. One that is well formed and has a setting which this version does not know comes out as the Error
that is its answer: a newer peer is told, and the connection lives on.
"""

from __future__ import annotations

import re
import typing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danubius.errors import InvalidArgument, InvariantViolation, ProtocolViolation
from danubius.wire.commands import AnyCommand, Error, Opcode

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

_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(.*)` - at `(.*)`", re.DOTALL)

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
        unknown = _UNKNOWN_FIELD.fullmatch(str(problem))
        if unknown is not None:
            return _refuse_setting(name, *unknown.groups())
        raise ProtocolViolation(
            f"the command of a {name} frame is malformed: {problem}"
        ) from problem


def _refuse_setting(name: str, key: str, path: str) -> Error:
    """What a command is answered with that sets what this version does not have."""
    where = path.rpartition(".")[2].rstrip("]") if "." in path else "the command"
    return Error.of(
        InvalidArgument(
            f"{name} sets {key[:100]!r} in {where}, which this version does not know: upgrade it, or leave that out"
        )
    )
