"""Requests about transactions: begin, stage batches and acknowledgements, commit, abort."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from danubius.errors import HandleNotFound, InvalidArgument, Throttled
from danubius.wire.commands import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    Stage,
    StageAck,
    TransactionBegun,
)

if TYPE_CHECKING:
    from danubius.session.state import Handler, PayloadHandler, SessionState


def _begin(session: SessionState, command: BeginTransaction, correlation_id: int) -> None:
    number = session.node.transactions.begin(session, command.timeout_ms)
    session.peer.send(TransactionBegun(number), correlation_id)


def _stage(session: SessionState, command: Stage, correlation_id: int, payload: memoryview) -> None:
    transactions = session.node.transactions
    with transactions.adding(session, command.transaction) as one:
        if command.due_ms:
            raise InvalidArgument(
                "a transaction publishes when it is committed: schedule messages outside of it"
            )
        handle = session.producers.get(command.handle)
        if handle is None:
            raise HandleNotFound(f"no producer is open under handle {command.handle}")
        try:
            wait_ns = transactions.stage(one, handle.topic, handle.producer, payload)
        except Throttled:
            handle.throttled_batches += 1
            raise
    if wait_ns > 0:
        handle.throttled_batches += 1
        session.shard.loop.call_later(wait_ns / 1e9, session.finish, correlation_id, None)
    else:
        session.finish(correlation_id, None)


def _stage_ack(session: SessionState, command: StageAck, correlation_id: int) -> None:
    transactions = session.node.transactions
    with transactions.adding(session, command.transaction) as one:
        consumer = session.consumers.get(command.handle)
        if consumer is None:
            raise HandleNotFound(f"no consumer is open under handle {command.handle}")
        transactions.ack(one, consumer, command.ranges)
    session.finish(correlation_id, None)


def _commit(session: SessionState, command: CommitTransaction, correlation_id: int) -> None:
    finish = functools.partial(session.finish, correlation_id)
    session.node.transactions.commit(
        session, command.transaction, session.later(correlation_id, finish)
    )
    if session.shard.pressure.is_high:
        session.pause_publishing()


def _abort(session: SessionState, command: AbortTransaction, correlation_id: int) -> None:
    session.node.transactions.abort(session, command.transaction)
    session.finish(correlation_id, None)


HANDLERS: Final[dict[type, Handler]] = {
    BeginTransaction: _begin,
    StageAck: _stage_ack,
    CommitTransaction: _commit,
    AbortTransaction: _abort,
}
PAYLOAD_HANDLERS: Final[dict[type, PayloadHandler]] = {
    Stage: _stage,
}
