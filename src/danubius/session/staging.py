"""Requests about stages of jobs: open, upload, commit, abort."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError
from danubius.wire.commands import AbortStages, CommitStages, OpenStage, StageOpened, Upload

if TYPE_CHECKING:
    from danubius.session.state import Handler, PayloadHandler, SessionState
    from danubius.shard.state.core.stages import Stage


def _open(session: SessionState, command: OpenStage, correlation_id: int) -> None:
    def opened(result: Stage | DanubiusError | None) -> None:
        if isinstance(result, DanubiusError):
            session.fail(correlation_id, result)
        elif result is None:
            session.peer.send(StageOpened(0, 0), correlation_id)
        else:
            session.peer.send(StageOpened(result.number, result.batches), correlation_id)

    session.node.staging.open(
        command.job, command.batch, command.task, session.later(correlation_id, opened)
    )


def _upload(
    session: SessionState, command: Upload, correlation_id: int, payload: memoryview
) -> None:
    finish = session.later(correlation_id, functools.partial(session.finish, correlation_id))
    wait_ns = 0

    def stored(error: DanubiusError | None) -> None:
        if wait_ns > 0 and error is None:
            session.shard.loop.call_later(wait_ns / 1e9, finish, None)
        else:
            finish(error)

    wait_ns = session.node.staging.upload(
        command.stage, command.index, command.topic, payload, stored
    )
    if session.shard.pressure.must_wait(session, len(payload)):
        session.pause_publishing()


def _commit(session: SessionState, command: CommitStages, correlation_id: int) -> None:
    finish = functools.partial(session.finish, correlation_id)
    session.node.staging.commit(
        command.job, command.batch, command.stages, session.later(correlation_id, finish)
    )


def _abort(session: SessionState, command: AbortStages, correlation_id: int) -> None:
    finish = functools.partial(session.finish, correlation_id)
    session.node.staging.abort(
        command.job, command.batch, command.stages, session.later(correlation_id, finish)
    )


HANDLERS: Final[dict[type, Handler]] = {
    OpenStage: _open,
    CommitStages: _commit,
    AbortStages: _abort,
}
PAYLOAD_HANDLERS: Final[dict[type, PayloadHandler]] = {
    Upload: _upload,
}
