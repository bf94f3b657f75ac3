"""The services of `danube_admin`, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.edge.grpc.admin.asking import Addresses, Office
from danubius.edge.grpc.admin.brokers import BrokerAdmin, ClusterAdmin, security_servicer
from danubius.edge.grpc.admin.topics import NamespaceAdmin, TopicAdmin

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.edge.grpc.servicer import Servicer
    from danubius.session.door import Door

__all__ = ["Addresses", "admin_servicers"]


def admin_servicers(door: Door, addresses: Callable[[], Addresses]) -> list[Servicer]:
    """All five, for one broker; `addresses` is asked when somebody wants to know them."""
    office = Office(door, addresses)
    return [
        BrokerAdmin(office).servicer(),
        ClusterAdmin(office).servicer(),
        NamespaceAdmin(office).servicer(),
        TopicAdmin(office).servicer(),
        security_servicer(),
    ]
