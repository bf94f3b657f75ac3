"""What an operator sees of a subscription in trouble: events, metrics and figures of a real broker say the same."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

import danubius
from danubius.app.metric_catalogue import all_metrics
from e2e.rest_client import Rest
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.model.admin_replies import SubscriptionEvent
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


def fetch(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(broker.http_url + "/metrics", timeout=HANG_S) as response:
        return response.read().decode()


def scrape(broker: BrokerProcess) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(fetch(broker))
        for sample in family.samples
    }


async def scrape_until(
    broker: BrokerProcess, is_enough: Callable[[dict[tuple[str, ...], float]], bool]
) -> dict[tuple[str, ...], float]:
    async with asyncio.timeout(HANG_S):
        while True:
            found = await asyncio.to_thread(scrape, broker)
            if is_enough(found):
                return found
            await asyncio.sleep(LOOK_S)


async def events_until(
    client: danubius.Client, topic: str, kind: str
) -> dict[str, SubscriptionEvent]:
    """The last event of each kind, once there is one of this."""
    async with asyncio.timeout(HANG_S):
        while True:
            found = (await client.admin.list_events(topic, "s")).events
            if kind in [event.kind for event in found]:
                return {event.kind: event for event in found}
            await asyncio.sleep(LOOK_S)


async def test_dead_letters_show_everywhere(broker: BrokerProcess, topic: str) -> None:
    failure = danubius.FailurePolicy(redeliveries_max=0)
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest", failure=failure) as consumer,
    ):
        await producer.send_many([b"good", b"bad", b"good"])
        for _ in range(3):
            message = await consumer.receive(HANG_S)
            if message.payload == b"bad":
                await consumer.nack(message, reason="it is broken")
            else:
                await consumer.ack(message)
        told = await events_until(client, topic, "dead-lettered")
        assert {"created", "joined", "condemned"} <= set(told)
        assert told["joined"].who == consumer.name
        assert told["dead-lettered"].messages == 1
        assert told["dead-lettered"].detail == f"to {topic}-s-dlq: it is broken"
        found = await scrape_until(
            broker,
            lambda found: found["danubius_subscription_acked_messages_total", topic, "s"] == 2,
        )
        assert found["danubius_subscription_dead_lettered_messages_total", topic, "s"] == 1
        assert found["danubius_subscription_backlog_messages", topic, "s"] == 0
        assert found["danubius_topic_end_offset", f"{topic}-s-dlq"] == 1
        assert found["danubius_dead_lettered_messages_total",] >= 1
        assert found["danubius_dead_letter_messages",] >= 1
        assert not [names for names in found if "~redrive" in names]
        assert await client.admin.redrive(topic, "s") == 1
        assert (await events_until(client, topic, "redriven"))["redriven"].messages == 1


async def test_a_blocked_subscription_shows_until_it_is_released(
    broker: BrokerProcess, topic: str
) -> None:
    failure = danubius.FailurePolicy(redeliveries_max=0, then=danubius.Exhausted.BLOCK)
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest", failure=failure) as consumer,
    ):
        await producer.send(b"bad")
        await consumer.nack(await consumer.receive(HANG_S))
        await events_until(client, topic, "blocked")
        found = await asyncio.to_thread(scrape, broker)
        assert found["danubius_subscription_blocked", topic, "s"] == 1
        assert found["danubius_blocked_subscriptions",] >= 1
        await client.admin.unblock(topic, "s")
        assert (await events_until(client, topic, "unblocked"))["unblocked"].messages == 1
        await consumer.ack(await consumer.receive(HANG_S))
        await scrape_until(
            broker, lambda found: not found["danubius_subscription_blocked", topic, "s"]
        )


async def test_consumers_leave_with_a_reason(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with client.consumer(topic, subscription="s", name="one"):
            await client.admin.disconnect_consumer(topic, "s", "one")
            told = await events_until(client, topic, "left")
            assert (told["left"].who, "operator" in told["left"].detail) == ("one", True)
        other = await danubius.connect(broker.url)
        await other.consumer(topic, subscription="s", name="two")
        other._connections.home.session_or_none._protocol.abort()  # type: ignore[union-attr]
        assert (await events_until(client, topic, "lost"))["lost"].who == "two"
        await other.close()


async def test_every_metric_of_the_page_is_scraped(broker: BrokerProcess, topic: str) -> None:
    def has_looked(found: dict[tuple[str, ...], float]) -> bool:
        return found["danubius_loop_lag_seconds_count",] > 0

    found = await scrape_until(broker, has_looked)
    assert found["danubius_loop_lag_seconds_bucket", "+Inf"] >= 1
    text = await asyncio.to_thread(fetch, broker)
    for metric in all_metrics():
        assert f"# TYPE {metric.name} {metric.kind}\n" in text
    assert found["danubius_checkpoints_total",] >= 1


async def test_rest_requests_are_counted_by_route_and_status(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    routes = {
        "topics": "/api/v1/topics",
        "topic": "/api/v1/topics/{namespace}/{topic}",
        "tail": "/api/v1/topics/{namespace}/{topic}/tail",
    }
    async with Rest(broker) as rest:
        for number in range(3):
            await rest.put(f"/api/v1/topics/default/topic-{number}")
        await rest.get("/api/v1/topics/default/topic-0")
        await rest.get("/api/v1/topics/default/not-there", 404)
        await rest.patch("/api/v1/topics", status=405)
        await rest.get("/api/v1/nowhere", 404)
        await rest.get("/health")
        async with rest.http.stream("GET", "/api/v1/topics/default/topic-0/tail") as tail:
            assert tail.status_code == 200
            # A stream counts when it begins, not when it ends.
            found = await asyncio.to_thread(scrape, broker)
    counts = {key[1:]: value for key, value in found.items() if "rest_requests" in key[0]}
    assert counts == {
        ("PUT", routes["topic"], "2xx"): 3,
        ("GET", routes["topic"], "2xx"): 1,
        ("GET", routes["topic"], "4xx"): 1,
        ("PATCH", routes["topics"], "4xx"): 1,
        ("GET", "unknown", "4xx"): 1,
        ("GET", routes["tail"], "2xx"): 1,
    }
    assert found["danubius_rest_request_duration_seconds_count", "PUT", routes["topic"]] == 3
