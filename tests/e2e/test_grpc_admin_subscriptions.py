"""Subscriptions through Danube's admin API: listed, ended, and given policies that hold at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import danubius
from danubius import FailurePolicy
from e2e.danube_calls import Calls, calling
from e2e.danube_peers import until
from e2e.traffic import take
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from danubius import Client
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

Code = grpc.StatusCode
BLOCK, DROP = 1, 2
SUBSCRIPTION = "work"


@pytest.fixture
def broker(grpc_broker: BrokerProcess) -> BrokerProcess:
    return grpc_broker


@pytest.fixture
async def admin(broker: BrokerProcess) -> AsyncGenerator[Calls]:
    async with calling(broker.admin_port) as calls:
        yield calls


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncGenerator[Client]:
    async with danubius.connect(broker.url) as client:
        yield client


async def unacked(client: Client, topic: str) -> int:
    found = await client.admin.describe_subscription(topic, SUBSCRIPTION)
    return found.statistics.unacked_messages


async def test_subscriptions_are_listed_and_ended_with_their_consumers(
    admin: Calls, client: Client, topic: str
) -> None:
    await client.create_topic(topic)
    for name in ("b", "a", "a-b"):
        await client.admin.create_subscription(topic, name)
    listed = await admin("TopicAdmin/ListSubscriptions", name=topic)
    assert list(listed.subscriptions) == ["a", "a-b", "b"]
    described = await admin("TopicAdmin/DescribeTopic", name=topic)
    assert (described.name, described.delivery) == (topic, "Reliable")
    assert list(described.subscriptions) == ["a", "a-b", "b"]
    assert not described.HasField("schema_subject")
    async with client.consumer(topic, subscription="a") as consumer:
        assert (await admin("TopicAdmin/Unsubscribe", topic=topic, subscription="a")).success
        with pytest.raises(danubius.SubscriptionNotFound):
            await consumer.receive(timeout=HANG_S)
    listed = await admin("TopicAdmin/ListSubscriptions", name=topic)
    assert list(listed.subscriptions) == ["a-b", "b"]
    for name in ("a", "never"):
        code = await admin.code("TopicAdmin/Unsubscribe", topic=topic, subscription=name)
        assert code is Code.NOT_FOUND
    code = await admin.code("TopicAdmin/Unsubscribe", topic=topic)
    assert code is Code.INVALID_ARGUMENT


async def test_a_failure_policy_that_is_set_is_what_holds(
    admin: Calls, client: Client, topic: str
) -> None:
    await client.create_topic(topic)
    await client.admin.create_subscription(topic, SUBSCRIPTION)
    given: dict[str, Any] = {
        "max_redelivery_count": 4,
        "ack_timeout_ms": 30_000,
        "base_redelivery_delay_ms": 250,
        "max_redelivery_delay_ms": 8_000,
        "backoff_strategy": 1,
        "dead_letter_topic": "/default/dead",
        "poison_policy": 0,
    }
    of = {"topic": topic, "subscription": SUBSCRIPTION}
    await admin("TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=given, **of)
    found = await admin("TopicAdmin/GetSubscriptionFailurePolicy", **of)
    told = {field.name: value for field, value in found.failure_policy.ListFields()}
    assert told | {"poison_policy": 0} == given
    assert found.subscription_type == 0
    described = await client.admin.describe_subscription(topic, SUBSCRIPTION)
    assert described.failure == FailurePolicy(
        ack_timeout_ms=30_000,
        delay_ms=250,
        delay_max_ms=8_000,
        redeliveries_max=4,
        dead_letter_topic="/default/dead",
    )


async def test_a_failure_policy_holds_for_consumers_that_are_there(
    admin: Calls, client: Client, topic: str
) -> None:
    """Nothing bounds redeliveries until the policy is set; then the message that fails is dropped."""
    async with (
        client.producer(topic) as producer,
        client.consumer(topic, subscription=SUBSCRIPTION) as consumer,
    ):
        await producer.send(b"bad")
        (message,) = await take(consumer, 1, within_s=HANG_S)
        for count in (1, 2):
            await consumer.nack(message)
            (message,) = await take(consumer, 1, within_s=HANG_S)
            assert (message.payload, message.redelivery_count) == (b"bad", count)
        of = {"topic": topic, "subscription": SUBSCRIPTION}
        policy = {"max_redelivery_count": 0, "poison_policy": DROP}
        await admin("TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=policy, **of)
        await consumer.nack(message)
        await producer.send(b"good")
        (message,) = await take(consumer, 1, within_s=HANG_S)
        assert message.payload == b"good"


async def test_a_blocked_subscription_goes_on_when_the_policy_changes(
    admin: Calls, client: Client, topic: str
) -> None:
    of = {"topic": topic, "subscription": SUBSCRIPTION}
    block = {"max_redelivery_count": 0, "poison_policy": BLOCK}
    await client.create_topic(topic)
    await admin("TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=block, **of)
    async with (
        client.consumer(topic, subscription=SUBSCRIPTION) as consumer,
        client.producer(topic) as producer,
    ):
        await producer.send(b"bad")
        (message,) = await take(consumer, 1, within_s=HANG_S)
        await consumer.nack(message)

        async def is_blocked() -> bool:
            return (await client.admin.list_subscriptions(topic))[0].is_blocked

        await until(is_blocked)
        await producer.send(b"good")
        drop = block | {"poison_policy": DROP}
        await admin("TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=drop, **of)
        (message,) = await take(consumer, 1, within_s=HANG_S)
        assert message.payload == b"good"


async def test_a_policy_set_before_the_first_consumer_is_its_policy(
    admin: Calls, client: Client, topic: str
) -> None:
    """The order in which Danube's users have to do it; what is published in between is not lost either."""
    await client.create_topic(topic)
    of = {"topic": topic, "subscription": SUBSCRIPTION}
    policy = {"max_redelivery_count": 1, "poison_policy": DROP}
    await admin("TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=policy, **of)
    async with client.producer(topic) as producer:
        await producer.send_many([b"bad", b"good"])
    async with client.consumer(topic, subscription=SUBSCRIPTION, type="failover") as consumer:
        first, second = await take(consumer, 2, within_s=HANG_S)
        assert (first.payload, second.payload) == (b"bad", b"good")
        await consumer.nack(first)
        (again,) = await take(consumer, 1, within_s=HANG_S)
        assert (again.payload, again.redelivery_count) == (b"bad", 1)
        await consumer.nack(again)
        await consumer.ack(second)

        async def is_done() -> bool:
            return not (await client.admin.list_subscriptions(topic))[0].backlog_messages

        await until(is_done)
    found = await admin("TopicAdmin/GetSubscriptionFailurePolicy", **of)
    assert (found.failure_policy.max_redelivery_count, found.subscription_type) == (1, 2)


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key-shared"])
async def test_the_window_is_changed_while_a_consumer_reads(
    admin: Calls, client: Client, topic: str, kind: Any
) -> None:
    of = {"topic": topic, "subscription": SUBSCRIPTION}

    async def set_window(most: int) -> None:
        config = {"max_unacked_messages": most}
        await admin("TopicAdmin/SetSubscriptionDispatchConfig", dispatch_config=config, **of)

    async with client.producer(topic) as producer:
        await client.admin.create_subscription(topic, SUBSCRIPTION)
        found = await admin("TopicAdmin/GetSubscriptionDispatchConfig", **of)
        assert not found.HasField("dispatch_config")
        await set_window(5)
        await producer.send_many([b"%d" % number for number in range(40)])
        async with client.consumer(topic, subscription=SUBSCRIPTION, type=kind) as consumer:
            messages = await take(consumer, 5, within_s=HANG_S)
            assert await unacked(client, topic) == 5
            await set_window(12)
            messages += await take(consumer, 7, within_s=HANG_S)
            assert await unacked(client, topic) == 12
            await set_window(3)
            for message in messages[:9]:
                await consumer.ack(message)

            async def are_three_left() -> bool:
                return await unacked(client, topic) == 3

            # Were the bound not obeyed, each acknowledgement would have brought another message.
            await until(are_three_left)
            await consumer.ack(messages[9])
            (message,) = await take(consumer, 1, within_s=HANG_S)
            assert message.payload == b"12"
            assert await unacked(client, topic) == 3
    found = await admin("TopicAdmin/GetSubscriptionDispatchConfig", **of)
    assert found.dispatch_config.max_unacked_messages == 3


async def test_window_and_failure_policy_leave_each_other_alone_and_survive_a_kill(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(grpc=True)
    of = {"topic": topic, "subscription": SUBSCRIPTION}
    policy = {"max_redelivery_count": 3, "base_redelivery_delay_ms": 50}
    policy |= {"max_redelivery_delay_ms": 70, "poison_policy": BLOCK}
    async with calling(broker.admin_port) as admin:
        await admin("TopicAdmin/CreateTopic", name=topic, dispatch_strategy=1)
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, 20):
                config = {"max_unacked_messages": number}
                tasks.create_task(
                    admin("TopicAdmin/SetSubscriptionDispatchConfig", dispatch_config=config, **of)
                )
                tasks.create_task(
                    admin("TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=policy, **of)
                )
        await admin(
            "TopicAdmin/SetSubscriptionDispatchConfig",
            dispatch_config={"max_unacked_messages": 99},
            **of,
        )
    broker.kill()
    broker.start()
    async with calling(broker.admin_port) as admin:
        found = await admin("TopicAdmin/GetSubscriptionFailurePolicy", **of)
        told = {field.name: value for field, value in found.failure_policy.ListFields()}
        assert told == policy
        window = await admin("TopicAdmin/GetSubscriptionDispatchConfig", **of)
        assert window.dispatch_config.max_unacked_messages == 99


async def test_policies_that_cannot_be_are_refused_and_change_nothing(
    admin: Calls, client: Client, topic: str
) -> None:
    await client.create_topic(topic)
    await client.admin.create_subscription(topic, SUBSCRIPTION)
    of = {"topic": topic, "subscription": SUBSCRIPTION}
    bad: list[dict[str, Any]] = [
        {"poison_policy": 5},
        {"backoff_strategy": 5},
        {"ack_timeout_ms": 2**64 - 1},
        {"base_redelivery_delay_ms": 10, "max_redelivery_delay_ms": 9},
        {"max_redelivery_count": 2**32 - 2},
        {"dead_letter_topic": "no topic"},
        {"dead_letter_topic": topic},
    ]
    for subscription in (SUBSCRIPTION, "not-there"):
        for policy in bad:
            code = await admin.code(
                "TopicAdmin/SetSubscriptionFailurePolicy",
                topic=topic,
                subscription=subscription,
                failure_policy=policy,
            )
            assert code is Code.INVALID_ARGUMENT, policy
        for most in (0, 1_000_001):
            code = await admin.code(
                "TopicAdmin/SetSubscriptionDispatchConfig",
                topic=topic,
                subscription=subscription,
                dispatch_config={"max_unacked_messages": most},
            )
            assert code is Code.INVALID_ARGUMENT, most
    for what in ("FailurePolicy", "DispatchConfig"):
        assert await admin.code(f"TopicAdmin/SetSubscription{what}", **of) is Code.INVALID_ARGUMENT
        code = await admin.code(
            f"TopicAdmin/GetSubscription{what}", topic=topic, subscription="not-there"
        )
        assert code is Code.NOT_FOUND
        code = await admin.code(
            f"TopicAdmin/GetSubscription{what}", topic=topic + "x", subscription=SUBSCRIPTION
        )
        assert code is Code.NOT_FOUND
    described = await client.admin.describe_subscription(topic, SUBSCRIPTION)
    assert described.failure is None
    listed = await admin("TopicAdmin/ListSubscriptions", name=topic)
    assert list(listed.subscriptions) == [SUBSCRIPTION]


async def test_a_topic_that_keeps_nothing_has_no_policy_to_set(
    admin: Calls, client: Client, topic: str
) -> None:
    await admin("TopicAdmin/CreateTopic", name=topic)
    refused = await admin.refusal(
        "TopicAdmin/SetSubscriptionFailurePolicy",
        topic=topic,
        subscription=SUBSCRIPTION,
        failure_policy={"max_redelivery_count": 1},
    )
    assert refused.code() is Code.FAILED_PRECONDITION
    assert "non-reliable" in (refused.details() or "")
