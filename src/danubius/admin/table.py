"""The administration: one table of all requests, whichever way they came in.

An action does what is asked and answers once, through `on_reply`, with the reply that `model/admin.py` promises or
an error; or it raises a DanubiusError instead, before it has changed anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.admin import (
    description,
    namespaces,
    positions,
    redriving,
    storage,
    topics,
    transactions,
)
from danubius.errors import UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from danubius.broker.node import Node
    from danubius.model.admin import AdminRequest
    from danubius.model.admin_replies import OnReply

    Action = Callable[[Node, Any, OnReply], None]

ADMIN: Final[Mapping[type, Action]] = {
    **description.ADMIN,
    **positions.ADMIN,
    **redriving.ADMIN,
    **namespaces.ADMIN,
    **storage.ADMIN,
    **topics.ADMIN,
    **transactions.ADMIN,
}


def administer(node: Node, request: AdminRequest, on_reply: OnReply) -> None:
    """Do what is asked. Raises a DanubiusError, or answers exactly once."""
    action = ADMIN.get(type(request))
    if action is None:
        name = type(request).__struct_config__.tag
        raise UnsupportedVersion(f"this broker does not serve the request {name!r}: upgrade it")
    action(node, request, on_reply)
