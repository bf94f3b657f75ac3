"""NamespaceAdmin and TopicAdmin: requests of Danube's admin API as requests to the broker's administration.

A change is answered when it is durable, and holds from then on: also for consumers that are attached, and for messages
that were delivered before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from danubius.edge.grpc.admin.asking import bounded
from danubius.edge.grpc.admin.brokers import ALONE
from danubius.edge.grpc.data.schemas import refuse_subject
from danubius.edge.grpc.messages import danube_admin
from danubius.edge.grpc.names import inner_name
from danubius.edge.grpc.policies import (
    DELIVERY,
    TYPES,
    dispatch_of,
    read_failure,
    unless_told,
    write_failure,
    write_policies,
)
from danubius.edge.grpc.servicer import Servicer
from danubius.edge.grpc.status import Code, Refused
from danubius.errors import InvalidArgument, SubscriptionNotFound
from danubius.model import admin
from danubius.model.ids import namespace_of, parse_topic_name
from danubius.model.policy import PARTITIONS_MAX
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import Dispatch, TopicSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.edge.grpc.admin.asking import Office, TopicLine
    from danubius.edge.grpc.servicer import Context
    from danubius.model.admin_replies import SubscriptionDescribed
    from danubius.model.policy import FailurePolicy

_PAYLOAD_TYPES: Final = frozenset({"Bytes", "String"})
"""What Danube's HTTP gateway puts in the place of a subject when nobody asked for a schema."""


class NamespaceAdmin:
    """Namespaces; a leading slash, as some write them, is passed over."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def servicer(self) -> Servicer:
        return Servicer(
            danube_admin.service("NamespaceAdmin"),
            {
                "GetNamespaceTopics": self.get_topics,
                "GetNamespacePolicies": self.get_policies,
                "CreateNamespace": self.create,
                "DeleteNamespace": self.delete,
            },
        )

    async def get_topics(self, request: Any, context: Context) -> Any:
        del context
        lines = await self._office.topics_in(_namespace(request))
        return bounded(danube_admin.TopicListResponse(topics=[line.name for line in lines]))

    async def get_policies(self, request: Any, context: Context) -> Any:
        del context
        found = await self._office.ask(admin.DescribeNamespace(_namespace(request)))
        return danube_admin.PolicyResponse(policies=write_policies(found.effective))

    async def create(self, request: Any, context: Context) -> Any:
        del context
        await self._office.ask(admin.CreateNamespace(_namespace(request)))
        return danube_admin.NamespaceResponse(success=True)

    async def delete(self, request: Any, context: Context) -> Any:
        del context
        await self._office.ask(admin.DeleteNamespace(_namespace(request)))
        return danube_admin.NamespaceResponse(success=True)


class TopicAdmin:
    """Topics, and subscriptions with their policies."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def servicer(self) -> Servicer:
        return Servicer(
            danube_admin.service("TopicAdmin"),
            {
                "ListNamespaceTopics": self.list_in_namespace,
                "ListBrokerTopics": self.list_on_broker,
                "CreateTopic": self.create,
                "CreatePartitionedTopic": self.create_partitioned,
                "DeleteTopic": self.delete,
                "UnloadTopic": self.unload,
                "DescribeTopic": self.describe,
                "ListSubscriptions": self.list_subscriptions,
                "Unsubscribe": self.unsubscribe,
                "SetSubscriptionFailurePolicy": self.set_failure,
                "GetSubscriptionFailurePolicy": self.get_failure,
                "SetSubscriptionDispatchConfig": self.set_dispatch,
                "GetSubscriptionDispatchConfig": self.get_dispatch,
            },
        )

    # ------------------------------------------------------------ topics

    async def list_in_namespace(self, request: Any, context: Context) -> Any:
        del context
        return self._listed(await self._office.topics_in(_namespace(request)))

    async def list_on_broker(self, request: Any, context: Context) -> Any:
        del context
        self._office.check_broker(request.broker_id)
        return self._listed(await self._office.topics())

    def _listed(self, lines: Sequence[TopicLine]) -> Any:
        number = self._office.number_text
        infos = [
            danube_admin.TopicInfo(
                name=line.name, broker_id=number, delivery=DELIVERY[line.dispatch]
            )
            for line in lines
        ]
        return bounded(danube_admin.TopicInfoListResponse(topics=infos))

    async def create(self, request: Any, context: Context) -> Any:
        del context
        await self._create(request, request.name, 0)
        return danube_admin.TopicResponse(success=True)

    async def create_partitioned(self, request: Any, context: Context) -> Any:
        del context
        if not request.partitions:
            raise InvalidArgument(f"partitions is 0; it must be 1 to {PARTITIONS_MAX}")
        await self._create(request, request.base_name, request.partitions)
        return danube_admin.TopicResponse(success=True)

    async def _create(self, request: Any, name: str, partitions: int) -> None:
        spec = TopicSpec(dispatch=dispatch_of(request.dispatch_strategy))
        if request.schema_subject not in _PAYLOAD_TYPES:
            refuse_subject(request.schema_subject)
        self._office.check_namespace(namespace_of(parse_topic_name(name)))
        await self._office.ask(admin.CreateTopic(name, spec, partitions))

    async def delete(self, request: Any, context: Context) -> Any:
        del context
        await self._office.ask(admin.DeleteTopic(request.name))
        return danube_admin.TopicResponse(success=True)

    async def unload(self, request: Any, context: Context) -> Any:
        del context
        found = await self._office.ask(admin.DescribeTopic(request.name))
        raise Refused(
            Code.FAILED_PRECONDITION,
            f"{ALONE}: there is no other that {found.topic} could go to, so it stays and is served on",
        )

    async def describe(self, request: Any, context: Context) -> Any:
        del context
        found = await self._office.ask(admin.DescribeTopic(request.name))
        names = await self._office.subscriptions(request.name)
        answer = danube_admin.DescribeTopicResponse(
            name=found.topic,
            subscriptions=names,
            broker_id=self._office.number_text,
            delivery=DELIVERY[found.dispatch],
        )
        return bounded(answer)

    # ------------------------------------------------------------ subscriptions

    async def list_subscriptions(self, request: Any, context: Context) -> Any:
        del context
        names = await self._office.subscriptions(request.name)
        return bounded(danube_admin.SubscriptionListResponse(subscriptions=names))

    async def unsubscribe(self, request: Any, context: Context) -> Any:
        del context
        asked = admin.DeleteSubscription(request.topic, _subscription(request), force=True)
        await self._office.ask(asked)
        return danube_admin.SubscriptionResponse(success=True)

    async def set_failure(self, request: Any, context: Context) -> Any:
        del context
        if not request.HasField("failure_policy"):
            raise InvalidArgument("failure_policy is missing")
        await self._change(request, lambda before: read_failure(request.failure_policy, before))
        return danube_admin.SubscriptionResponse(success=True)

    async def get_failure(self, request: Any, context: Context) -> Any:
        del context
        found = await self._find(request)
        return danube_admin.GetSubscriptionFailurePolicyResponse(
            failure_policy=write_failure(found.effective_failure),
            subscription_type=TYPES[found.type],
        )

    async def set_dispatch(self, request: Any, context: Context) -> Any:
        del context
        if not request.HasField("dispatch_config"):
            raise InvalidArgument("dispatch_config is missing")
        most = request.dispatch_config.max_unacked_messages
        await self._change(
            request, lambda before: msgspec.structs.replace(before, unacked_messages_max=most)
        )
        return danube_admin.SubscriptionResponse(success=True)

    async def get_dispatch(self, request: Any, context: Context) -> Any:
        del context
        found = await self._find(request)
        most = found.effective_failure.unacked_messages_max
        if most is msgspec.UNSET:
            return danube_admin.GetSubscriptionDispatchConfigResponse()
        config = danube_admin.SubscriptionDispatchConfig(max_unacked_messages=most)
        return danube_admin.GetSubscriptionDispatchConfigResponse(dispatch_config=config)

    async def _find(self, request: Any) -> SubscriptionDescribed:
        asked = admin.DescribeSubscription(request.topic, _subscription(request))
        return await self._office.ask(asked)

    async def _change(self, request: Any, change: Callable[[FailurePolicy], FailurePolicy]) -> None:
        """Give a subscription another policy, made of what holds. One that is not there is created with it."""
        office, name = self._office, _subscription(request)
        async with office.changing:
            topic = await office.ask(admin.DescribeTopic(request.topic))
            if topic.dispatch is not Dispatch.RELIABLE:
                raise Refused(
                    Code.FAILED_PRECONDITION,
                    f"{topic.topic} is non-reliable: nothing is acknowledged or delivered again there, so there is "
                    "nothing to set",
                )
            try:
                found = await self._find(request)
            except SubscriptionNotFound:
                policy = change(unless_told(topic.effective.failure))
                kind = SubscriptionType.SHARED  # the first consumer says which it is
                await office.ask(
                    admin.CreateSubscription(topic.topic, name, kind, failure=policy, exist_ok=True)
                )
            else:
                policy = change(found.effective_failure)
                await office.ask(admin.UpdateSubscription(topic.topic, name, policy))


def _namespace(request: Any) -> str:
    return request.name.removeprefix("/")


def _subscription(request: Any) -> str:
    return inner_name("subscription", request.subscription)
