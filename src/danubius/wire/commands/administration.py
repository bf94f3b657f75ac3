"""The envelope of administration requests.

The requests and replies themselves are those of `model/admin.py`, the same for this protocol, HTTP and the command
line. They travel unread: the frame is legal whatever is inside, so that a request which this broker does not know is
answered by InvalidArgument and does not cost the connection.
"""

# ruff: noqa: TC002  # msgspec reads the annotations when the module is imported

from __future__ import annotations

import msgspec

from danubius.wire.commands.opcodes import Command, Opcode


class Administer(Command, frozen=True):
    """Do or tell what an operator asks. Answered by Administered."""

    opcode = Opcode.ADMINISTER
    request: msgspec.Raw
    """One MessagePack map. It points into the frame's bytes: decode it before keeping it."""


class Administered(Command, frozen=True):
    """What came of it."""

    opcode = Opcode.ADMINISTERED
    reply: msgspec.Raw
    """One MessagePack map."""
