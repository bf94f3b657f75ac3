"""Publishing and acknowledging on several topics of one broker, all or nothing.

A transaction belongs to the connection that began it and is aborted with it. What is staged is seen by nobody and has
no offset before the commit.
"""

# ruff: noqa: TC001  # msgspec reads the annotations when the module is imported

from __future__ import annotations

from danubius.wire.commands.fields import Count, Handle, Ranges, Unsigned
from danubius.wire.commands.opcodes import Command, Opcode


class BeginTransaction(Command, frozen=True):
    """Begin a transaction that is aborted unless it ends within `timeout_ms`. Answered by TransactionBegun."""

    opcode = Opcode.BEGIN_TRANSACTION
    timeout_ms: Count


class TransactionBegun(Command, frozen=True):
    """The number of the transaction: unique for the life of the broker's data, never given twice."""

    opcode = Opcode.TRANSACTION_BEGUN
    transaction: Unsigned


class Stage(Command, frozen=True):
    """+ batches (exactly one). Publish it when the transaction commits. Answered by Done: taken note of, not stored.

    The sequence in the batch's header is not looked at: a lost connection aborts, so that nothing is ever repeated.
    """

    opcode = Opcode.STAGE
    transaction: Unsigned
    handle: Handle
    due_ms: Count = 0
    """With another value than 0, deliver it from then on only, as Schedule does."""


class StageAck(Command, frozen=True):
    """Acknowledge these ranges when the transaction commits. Answered by Done: taken note of."""

    opcode = Opcode.STAGE_ACK
    transaction: Unsigned
    handle: Handle
    ranges: Ranges


class CommitTransaction(Command, frozen=True):
    """Make everything staged durable and visible, or nothing of it. Answered by Done once durable.

    May be repeated, also on a new connection: a transaction that was committed is answered by Done again.
    """

    opcode = Opcode.COMMIT_TRANSACTION
    transaction: Unsigned


class AbortTransaction(Command, frozen=True):
    """Forget everything staged; what was acknowledged inside is delivered again. Answered by Done."""

    opcode = Opcode.ABORT_TRANSACTION
    transaction: Unsigned
