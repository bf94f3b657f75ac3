"""The endpoints of operators: one a request of `model/admin.py`, each answered by the reply that is promised there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.edge.rest.endpoint import Endpoint
from danubius.edge.rest.reading import MessagesSeen, peek
from danubius.model import admin
from danubius.model.admin import ADMIN_REPLIES
from danubius.model.admin_replies import Done

if TYPE_CHECKING:
    from danubius.edge.rest.desk import Desk
    from danubius.model.admin import AdminRequest

_NAMESPACE: Final = "/api/v1/namespaces/{namespace}"
_TOPIC: Final = "/api/v1/topics/{namespace}/{topic}"
_SUBSCRIPTION: Final = _TOPIC + "/subscriptions/{subscription}"


async def _administer(desk: Desk, request: Any) -> Any:
    return await desk.administer(request)


async def _peek(desk: Desk, request: admin.PeekMessages) -> MessagesSeen:
    found = await desk.administer(request)
    with desk.line() as line:
        return await peek(line, found.ranges, request.limit)


def _admin(method: str, path: str, request: type[AdminRequest], status: int = 0) -> Endpoint:
    reply = ADMIN_REPLIES[request]
    return Endpoint(
        method, path, request, reply, _administer, status=status or (204 if reply is Done else 200)
    )


ENDPOINTS: Final = (
    _admin("GET", "/api/v1/broker", admin.DescribeBroker),
    _admin("GET", "/api/v1/broker/settings", admin.DescribeSettings),
    _admin("PATCH", "/api/v1/broker/settings", admin.UpdateSettings),
    _admin("GET", "/api/v1/namespaces", admin.ListNamespaces),
    _admin("PUT", _NAMESPACE, admin.CreateNamespace, 201),
    _admin("GET", _NAMESPACE, admin.DescribeNamespace),
    _admin("PATCH", _NAMESPACE, admin.UpdateNamespace),
    _admin("DELETE", _NAMESPACE, admin.DeleteNamespace),
    _admin("GET", _NAMESPACE + "/stats", admin.MeasureNamespace),
    _admin("GET", "/api/v1/topics", admin.ListTopics),
    _admin("PUT", _TOPIC, admin.CreateTopic, 201),
    _admin("GET", _TOPIC, admin.DescribeTopic),
    _admin("PATCH", _TOPIC, admin.UpdateTopic),
    _admin("DELETE", _TOPIC, admin.DeleteTopic),
    _admin("GET", _TOPIC + "/stats", admin.MeasureTopic),
    _admin("GET", _TOPIC + "/ledgers", admin.ListLedgers),
    _admin("POST", _TOPIC + "/ledgers/{ledger_id}/check", admin.CheckLedger),
    _admin("POST", _TOPIC + "/offload", admin.OffloadTopic),
    _admin("GET", _TOPIC + "/producers", admin.ListProducers),
    _admin("DELETE", _TOPIC + "/producers/{producer}", admin.DisconnectProducer),
    _admin("GET", _TOPIC + "/consumers", admin.ListConsumers),
    _admin("GET", _TOPIC + "/subscriptions", admin.ListSubscriptions),
    _admin("PUT", _SUBSCRIPTION, admin.CreateSubscription, 201),
    _admin("GET", _SUBSCRIPTION, admin.DescribeSubscription),
    _admin("PATCH", _SUBSCRIPTION, admin.UpdateSubscription),
    _admin("DELETE", _SUBSCRIPTION, admin.DeleteSubscription),
    _admin("POST", _SUBSCRIPTION + "/seek", admin.SeekSubscription),
    _admin("POST", _SUBSCRIPTION + "/skip", admin.SkipMessages),
    Endpoint("GET", _SUBSCRIPTION + "/peek", admin.PeekMessages, MessagesSeen, _peek),
    _admin("POST", _SUBSCRIPTION + "/clear", admin.ClearBacklog),
    _admin("POST", _SUBSCRIPTION + "/unblock", admin.UnblockSubscription),
    _admin("GET", _SUBSCRIPTION + "/events", admin.ListEvents),
    _admin("GET", _SUBSCRIPTION + "/dead-letters", admin.ListDeadLetters),
    _admin("DELETE", _SUBSCRIPTION + "/dead-letters", admin.PurgeDeadLetters),
    _admin("POST", _SUBSCRIPTION + "/dead-letters/redrive", admin.RedriveDeadLetters),
    _admin("DELETE", _SUBSCRIPTION + "/consumers/{consumer}", admin.DisconnectConsumer),
    _admin("GET", "/api/v1/transactions", admin.ListTransactions),
    _admin("DELETE", "/api/v1/transactions/{transaction}", admin.AbortTransaction),
)
