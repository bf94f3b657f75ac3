"""What Danube's own test suites found here, and their clients would: a test for each fault, by the calls they make."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from danubius.edge.grpc.messages import danube_schema
from e2e.danube_calls import calling
from e2e.danube_peers import (
    NON_RELIABLE,
    RELIABLE,
    SHARED,
    DanubeConsumer,
    DanubeProducer,
    offsets,
    payloads,
)
from e2e.traffic import numbered
from patience import SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

Code = grpc.StatusCode
REGISTRY = "SchemaRegistry"


async def test_a_missing_topic_has_no_partitions(grpc_broker: BrokerProcess, topic: str) -> None:
    async with calling(grpc_broker.grpc_port) as calls:
        found = await calls("Discovery/TopicPartitions", request_id=5, topic=topic)
        assert (found.request_id, list(found.partitions)) == (5, [])
        assert await calls.code("Discovery/TopicPartitions", topic="t") is Code.INVALID_ARGUMENT


async def test_a_producer_that_asks_for_partitions_first_creates_its_topic(
    grpc_broker: BrokerProcess, topic: str
) -> None:
    """The order of Java's client: an error of the first call would end it."""
    async with calling(grpc_broker.grpc_port) as calls:
        found = await calls("Discovery/TopicPartitions", topic=topic)
        targets = list(found.partitions) or [topic]
        assert await calls.code("Discovery/TopicLookup", topic=targets[0]) is Code.NOT_FOUND
        producer = await DanubeProducer.open(calls, targets[0])
        consumer = await DanubeConsumer.open(calls, targets[0])
        await producer.send(b"from Java")
        health = await calls("HealthCheck/HealthCheck", client=0, id=producer.producer_id)
        assert health.status == 0
        assert payloads(await consumer.take(1, is_acking=True)) == [b"from Java"]


async def test_messages_of_a_topic_that_keeps_nothing_have_the_offset_0(
    grpc_broker: BrokerProcess, topic: str
) -> None:
    async with calling(grpc_broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic, dispatch=NON_RELIABLE)
        consumer = await DanubeConsumer.open(calls, topic)
        first = await first_heard(producer, consumer)
        for payload in numbered(3):
            await producer.send(payload)
        found = [first, *await consumer.take(3)]
        while payloads(found)[-3:] != numbered(3):
            found += await consumer.take(1)
        assert set(offsets(found)) == {0}
        for message in found:  # clients acknowledge these too, and nothing comes of it
            await consumer.ack(message)
            await consumer.nack(message)


async def first_heard(producer: DanubeProducer, consumer: DanubeConsumer) -> Any:
    """A stream of a topic that keeps nothing is open once something came through it."""
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(consumer.receive())
        while not first.done():
            await producer.send(b"is anybody there?")
            await asyncio.wait([first], timeout=SOON_S)
    return first.result()


async def test_a_dead_letter_says_its_policy_and_broker_as_danubes_clients_compare_them(
    grpc_broker: BrokerProcess, topic: str
) -> None:
    grave = f"{topic}-grave"
    async with (
        calling(grpc_broker.grpc_port) as calls,
        calling(grpc_broker.admin_port) as admin,
    ):
        producer = await DanubeProducer.open(calls, topic)
        await DanubeProducer.open(calls, grave)
        await admin(
            "TopicAdmin/SetSubscriptionFailurePolicy",
            topic=topic,
            subscription="s",
            failure_policy={"max_redelivery_count": 0, "dead_letter_topic": grave},
        )
        consumer = await DanubeConsumer.open(calls, topic, kind=SHARED)
        letters = await DanubeConsumer.open(calls, grave)
        await producer.send(b"bad")
        (bad,) = await consumer.take(1)
        await consumer.nack(bad, reason="it is bad")
        (letter,) = await letters.take(1)
        assert (letter.payload, letter.msg_id.topic_name) == (b"bad", grave)
        attributes = dict(letter.attributes)
        assert attributes.pop("x-original-producer-id").isdecimal()
        assert attributes == {
            "x-original-topic": topic,
            "x-original-topic-offset": "0",
            "x-original-subscription": "s",
            "x-original-broker-addr": bad.msg_id.broker_addr,
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": "1",
            "x-failure-reason": "it is bad",
        }


async def test_one_partition_cannot_be_deleted_and_the_sentence_is_danubes(
    grpc_broker: BrokerProcess, topic: str
) -> None:
    async with calling(grpc_broker.admin_port) as admin:
        await admin("TopicAdmin/CreatePartitionedTopic", base_name=topic, partitions=3)
        refused = await admin.refusal("TopicAdmin/DeleteTopic", name=f"{topic}-part-1")
        assert refused.code() is Code.INVALID_ARGUMENT
        assert "Cannot delete individual partition" in (refused.details() or "")
        assert f"delete {topic} as a whole" in (refused.details() or "")


async def test_a_schema_that_nobody_registered_is_not_found(
    grpc_broker: BrokerProcess, topic: str
) -> None:
    async with (
        calling(grpc_broker.grpc_port) as calls,
        calling(grpc_broker.admin_port) as admin,
    ):
        producer = await calls.refusal(
            "ProducerService/CreateProducer",
            topic_name=topic,
            producer_name="p",
            schema_ref={"subject": "orders", "use_latest": True},
        )
        created = await admin.refusal("TopicAdmin/CreateTopic", name=topic, schema_subject="orders")
        for refused in (producer, created):
            assert refused.code() is Code.FAILED_PRECONDITION
            assert "'orders' not found" in (refused.details() or "")
        assert list((await calls("Discovery/TopicPartitions", topic=topic)).partitions) == []


async def test_a_topic_of_plain_strings_needs_no_registry(
    grpc_broker: BrokerProcess, topic: str
) -> None:
    """Danube's HTTP gateway sends this subject whenever no schema was asked for."""
    async with calling(grpc_broker.admin_port) as admin:
        strings = {"schema_subject": "String", "dispatch_strategy": RELIABLE}
        await admin("TopicAdmin/CreateTopic", name=topic, **strings)
        base = f"{topic}-split"
        await admin("TopicAdmin/CreatePartitionedTopic", base_name=base, partitions=2, **strings)
        for name in (topic, f"{base}-part-1"):
            assert (await admin("TopicAdmin/DescribeTopic", name=name)).delivery == "Reliable"


@pytest.mark.parametrize("name", ["/nowhere/t", "/nowhere/t-part-0"])
async def test_a_namespace_that_is_not_there_is_not_made_by_the_way(
    grpc_broker: BrokerProcess, name: str
) -> None:
    async with (
        calling(grpc_broker.grpc_port) as calls,
        calling(grpc_broker.admin_port) as admin,
    ):
        asked = {"topic_name": name, "producer_name": "p"}
        produced = await calls.refusal("ProducerService/CreateProducer", **asked)
        created = await admin.refusal("TopicAdmin/CreateTopic", name=name)
        split = {"base_name": "/nowhere/p", "partitions": 2}
        partitioned = await admin.refusal("TopicAdmin/CreatePartitionedTopic", **split)
        for refused in (produced, created, partitioned):
            assert refused.code() is Code.NOT_FOUND
            assert "namespace 'nowhere' does not exist" in (refused.details() or "")
        assert "nowhere" not in (await admin("BrokerAdmin/ListNamespaces")).namespaces


async def test_all_calls_of_the_registry_say_that_nothing_is_in_it(
    grpc_broker: BrokerProcess, topic: str
) -> None:
    async with (
        calling(grpc_broker.grpc_port) as calls,
        calling(grpc_broker.admin_port) as admin,
    ):
        await DanubeProducer.open(calls, topic)
        answers: dict[str, tuple[Code | None, dict[str, Any]]] = {
            "ListSubjects": (None, {}),
            "GetSchema": (Code.NOT_FOUND, {"schema_id": 1}),
            "GetLatestSchema": (Code.NOT_FOUND, {"subject": "orders"}),
            "ListVersions": (Code.NOT_FOUND, {"subject": "orders"}),
            "CheckCompatibility": (Code.NOT_FOUND, {"subject": "orders"}),
            "DeleteSchemaVersion": (Code.NOT_FOUND, {"subject": "orders", "version": 1}),
            "SetCompatibilityMode": (
                Code.NOT_FOUND,
                {"subject": "orders", "compatibility_mode": "FULL"},
            ),
            "RegisterSchema": (Code.FAILED_PRECONDITION, {"subject": "orders"}),
            "ConfigureTopicSchema": (
                Code.NOT_FOUND,
                {"topic_name": topic, "schema_subject": "orders", "validation_policy": "warn"},
            ),
            "UpdateTopicValidationPolicy": (
                Code.FAILED_PRECONDITION,
                {"topic_name": topic, "validation_policy": "enforce"},
            ),
            "GetTopicSchemaConfig": (None, {"topic_name": topic}),
        }
        methods = danube_schema.service(REGISTRY).methods
        assert sorted(answers) == sorted(method.name for method in methods)
        for port in (calls, admin):
            for name, (code, fields) in answers.items():
                error = await port.outcome(f"{REGISTRY}/{name}", **fields)
                assert (error.code() if error is not None else None) is code, name
                if error is not None:
                    assert "no schema registry" in (error.details() or ""), name
            assert not (await port(f"{REGISTRY}/ListSubjects")).subjects
            config = await port(f"{REGISTRY}/GetTopicSchemaConfig", topic_name=topic)
            assert (config.schema_subject, config.validation_policy) == ("", "none")
            done = await port(
                f"{REGISTRY}/UpdateTopicValidationPolicy",
                topic_name=topic,
                validation_policy="none",
            )
            assert done.success


async def test_what_makes_no_sense_to_the_registry_is_said(
    grpc_broker: BrokerProcess, topic: str
) -> None:
    async with calling(grpc_broker.grpc_port) as calls:
        policy = {"topic_name": topic, "validation_policy": "warn"}
        for name in ("ConfigureTopicSchema", "UpdateTopicValidationPolicy"):
            assert await calls.code(f"{REGISTRY}/{name}", **policy) is Code.NOT_FOUND, name
        missing = await calls.code(f"{REGISTRY}/GetTopicSchemaConfig", topic_name=topic)
        assert missing is Code.NOT_FOUND
        wrong = {"topic_name": topic, "validation_policy": "sometimes"}
        for name, fields in (
            ("GetLatestSchema", {}),
            ("RegisterSchema", {}),
            ("SetCompatibilityMode", {"subject": "orders", "compatibility_mode": "sideways"}),
            ("ConfigureTopicSchema", wrong),
            ("UpdateTopicValidationPolicy", wrong),
            ("GetTopicSchemaConfig", {"topic_name": "no slash"}),
        ):
            refused = await calls.refusal(f"{REGISTRY}/{name}", **fields)
            assert refused.code() is Code.INVALID_ARGUMENT, name
            assert len(refused.details() or "") > 15, name
