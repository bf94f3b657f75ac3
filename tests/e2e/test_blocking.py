"""The client without async: the same calls, for scripts and threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import danubius
import danubius.blocking
from e2e.traffic import numbered
from patience import HANG_S, SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


def test_produce_consume_and_acknowledge(broker: BrokerProcess, topic: str) -> None:
    with danubius.blocking.connect(broker.url) as client:
        with client.producer(topic) as producer:
            receipt = producer.send(b"one", key=b"k", attributes={"a": "b"})
            assert receipt.offset == 0
            producer.send_many([b"two", b"three"])
            producer.send_nowait(b"four")
            producer.flush()
        with client.consumer(topic, subscription="s", type="shared", start="earliest") as consumer:
            received: list[bytes] = []
            for message in consumer:
                received.append(message.payload)
                consumer.ack(message)
                if len(received) == 4:
                    break
        with (
            client.consumer(topic, subscription="s", type="shared") as consumer,
            pytest.raises(danubius.DanubiusError) as caught,
        ):
            consumer.receive(timeout=SOON_S)
    assert received == [b"one", b"two", b"three", b"four"]
    assert caught.value.code == 504


def test_batches_and_readers(broker: BrokerProcess, topic: str) -> None:
    with danubius.blocking.connect(broker.url) as client:
        with client.producer(topic) as producer:
            producer.send_many(numbered(100))
        with client.consumer(topic, subscription="s", start="earliest") as consumer:
            batch = consumer.receive_batch(timeout=HANG_S)
            assert list(batch.payloads) == numbered(len(batch))
            consumer.nack(batch)
            again = consumer.receive_batch(timeout=HANG_S)
            assert again.redelivery_count == 1
            consumer.ack(again)
        with client.reader(topic, start=0, stop_at_end=True) as reader:
            assert [message.payload for message in reader] == numbered(100)


def test_topics_and_errors(broker: BrokerProcess, topic: str) -> None:
    with danubius.blocking.connect(broker.url) as client:
        client.create_topic(topic)
        assert client.describe_topic(topic).summary.topic == topic
        with pytest.raises(danubius.DanubiusError) as caught:
            client.create_topic(topic, dispatch="non-reliable")
        assert caught.value.code == 301
        client.delete_topic(topic)
        with pytest.raises(danubius.DanubiusError) as caught:
            client.describe_topic(topic)
        assert caught.value.code == 201


def test_threads_share_one_client(broker: BrokerProcess, topic: str) -> None:
    """Four threads send through one producer; nothing is lost and each thread's order holds."""
    with danubius.blocking.connect(broker.url) as client:
        with client.producer(topic) as producer:

            def send(thread: int) -> None:
                for number in range(50):
                    producer.send(b"%d %d" % (thread, number))

            threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with client.reader(topic, start=0, stop_at_end=True) as reader:
            received = [message.payload.split() for message in reader]
    for number in range(4):
        mine = [int(count) for thread, count in received if int(thread) == number]
        assert mine == list(range(50))


def test_no_broker_is_a_clear_error() -> None:
    with (
        pytest.raises(danubius.DanubiusError, match=r"127\.0\.0\.1:1") as caught,
        danubius.blocking.connect("danube://127.0.0.1:1", connect_timeout=10.0),
    ):
        pass
    assert caught.value.code == 501
    assert caught.value.is_retryable
