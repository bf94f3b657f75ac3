"""Requests of operators, in their envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from danubius.admin.table import administer
from danubius.errors import DanubiusError
from danubius.model.admin_codec import decode_request, encode_reply
from danubius.wire.commands import Administer, Administered

if TYPE_CHECKING:
    from danubius.model.admin_replies import AdminReply
    from danubius.session.state import Handler, SessionState


def _administer(session: SessionState, command: Administer, correlation_id: int) -> None:
    def answer(reply: AdminReply | DanubiusError) -> None:
        if isinstance(reply, DanubiusError):
            session.fail(correlation_id, reply)
        else:
            envelope = Administered(msgspec.Raw(encode_reply(reply)))
            session.peer.send(envelope, correlation_id)

    request = decode_request(command.request)
    administer(session.node, request, session.later(correlation_id, answer))


HANDLERS: Final[dict[type, Handler]] = {Administer: _administer}
