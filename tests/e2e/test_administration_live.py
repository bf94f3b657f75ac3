"""`client.admin` against a real broker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import danubius
from danubius import blocking
from danubius.errors import TopicNotFound

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


async def test_a_topic_and_its_broker_are_described(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(TopicNotFound):
            await client.admin.describe_topic(topic)
        async with client.producer(topic) as producer:
            await producer.send_many([b"x"] * 10)
            described = await client.admin.describe_topic(topic)
            assert described.producers == [producer.name]
        assert described.statistics.stored_messages == 10
        assert (await client.admin.measure_topic(topic)).published_messages == 10
        assert topic in [line.topic for line in await client.admin.list_topics("default")]
        about = await client.admin.describe_broker()
        assert about.url == broker.url
        assert about.statistics.connections >= 1


def test_the_blocking_client_has_it_too(broker: BrokerProcess, topic: str) -> None:
    with blocking.connect(broker.url) as client:
        client.create_topic(topic)
        assert client.admin.describe_topic(topic).topic == topic
        assert client.admin.measure_topic(topic).stored_messages == 0
