"""Namespaces through the client, against a real broker: inherited policies, auto-creation, deletion, restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.errors import (
    InvalidArgument,
    MessageTooLarge,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    TopicDeleted,
    TopicNotFound,
)
from danubius.model.policy import Policies
from e2e.traffic import take

if TYPE_CHECKING:
    from danubius import Client
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


@pytest.fixture
def space(topic: str) -> str:
    """A namespace of the test's own."""
    return topic.split("/")[2]


async def names(client: Client) -> list[str]:
    return [line.namespace for line in await client.admin.list_namespaces()]


async def test_default_and_system_are_there_from_the_first_start(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        assert await names(client) == ["default", "system"]
        for name in ("default", "system"):
            with pytest.raises(InvalidArgument, match="always there"):
                await client.admin.delete_namespace(name, force=True)


async def test_topics_inherit_what_their_namespace_says(broker: BrokerProcess, space: str) -> None:
    """The nearer layer wins, a change is felt at once, and None gives the layer below its say back."""
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(space, Policies(message_bytes_max=1000))
        async with client.producer(f"/{space}/t") as producer:
            await producer.send(b"x" * 900)
            with pytest.raises(MessageTooLarge):
                await producer.send(b"x" * 1200)
            await client.admin.update_namespace(space, Policies(message_bytes_max=5000))
            await producer.send(b"x" * 1200)
            await client.admin.update_topic(f"/{space}/t", Policies(message_bytes_max=1000))
            with pytest.raises(MessageTooLarge):
                await producer.send(b"x" * 1200)
            described = await client.admin.update_topic(
                f"/{space}/t", Policies(message_bytes_max=None)
            )
            assert described.policies == Policies()
            assert described.effective.message_bytes_max == 5000
            await producer.send(b"x" * 1200)


async def test_auto_creation_is_switched_off_for_a_namespace(
    broker: BrokerProcess, space: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(space, Policies(auto_create=False))
        with pytest.raises(TopicNotFound, match="auto-creation is off"):
            await client.producer(f"/{space}/t")
        await client.create_topic(f"/{space}/t")
        async with client.producer(f"/{space}/t") as producer:
            await producer.send(b"x")
        await client.admin.update_namespace(space, Policies(auto_create=True))
        async with client.producer(f"/{space}/u") as producer:
            await producer.send(b"x")


async def test_a_namespace_is_deleted_empty_or_by_force(broker: BrokerProcess, space: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(space)
        with pytest.raises(NamespaceExists):
            await client.admin.create_namespace(space)
        await client.create_topic(f"/{space}/plain")
        await client.create_topic(f"/{space}/parts", partitions=3)
        producer = await client.producer(f"/{space}/plain")
        await producer.send(b"x")
        with pytest.raises(NamespaceNotEmpty, match=r"4 topic\(s\)"):
            await client.admin.delete_namespace(space)
        await client.admin.delete_namespace(space, force=True)
        with pytest.raises(TopicDeleted):
            await producer.send(b"x")
        assert await client.list_topics(space) == []
        with pytest.raises(NamespaceNotFound):
            await client.admin.describe_namespace(space)


async def test_namespaces_survive_a_kill_and_a_stop(start_broker: StartBroker) -> None:
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace("kept", Policies(message_bytes_max=2000))
        await client.admin.create_namespace("gone")
        await client.create_topic("/gone/t")
        await client.admin.delete_namespace("gone", force=True)
        async with client.producer("/kept/t") as producer:
            await producer.send(b"x")
        await client.admin.update_namespace("kept", Policies(message_bytes_max=1000))
    broker.kill()
    broker.start()
    for _ in range(2):
        async with danubius.connect(broker.url) as client:
            assert await names(client) == ["default", "kept", "system"]
            assert [t.topic for t in await client.list_topics()] == ["/kept/t"]
            async with client.producer("/kept/t") as producer:
                with pytest.raises(MessageTooLarge):
                    await producer.send(b"x" * 1200)
            async with client.consumer("/kept/t", subscription="s", start="earliest") as consumer:
                assert (await take(consumer, 1))[0].payload == b"x"
        assert broker.stop() == 0
        broker.start()
