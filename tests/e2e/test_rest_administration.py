"""Everything an operator can ask, over HTTP: the same words as over the native protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.model.admin import ADMIN_REPLIES
from e2e.rest_client import Rest

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


async def test_life_of_a_namespace(broker: BrokerProcess, topic: str) -> None:
    name = topic.split("/")[-1]
    path = f"/api/v1/namespaces/{name}"
    async with Rest(broker) as rest:
        created = await rest.put(path, {"policies": {"ttl_ms": 1_000}})
        assert created["effective"]["ttl_ms"] == 1_000
        assert (await rest.put(path, status=409))["name"] == "NamespaceExists"
        await rest.put(path, {"policies": {"ttl_ms": 1_000}, "exist_ok": True})
        changed = await rest.patch(path, {"policies": {"ttl_ms": None, "retention_age_ms": 5}})
        assert changed["policies"] == {"retention_age_ms": 5}
        await rest.publish(f"/{name}/t", "x")
        stats = await rest.get(path + "/stats")
        assert (stats["statistics"]["topics"], stats["statistics"]["published_messages"]) == (1, 1)
        assert (await rest.delete(path, 409))["name"] == "NamespaceNotEmpty"
        await rest.delete(path, force="true")
        assert (await rest.get(path, 404))["name"] == "NamespaceNotFound"
        listed = await rest.get("/api/v1/namespaces")
        names = [line["namespace"] for line in listed["namespaces"]]
        assert "default" in names
        assert name not in names


async def test_life_of_a_topic(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        path = rest.path(topic)
        spec = {"durability": "written", "policies": {"producers_max": 3}}
        created = await rest.put(path, {"spec": spec})
        assert (created["durability"], created["effective"]["producers_max"]) == ("written", 3)
        assert (await rest.put(path, status=409))["name"] == "TopicExists"
        changed = await rest.patch(path, {"policies": {"producers_max": 2}})
        assert changed["effective"]["producers_max"] == 2
        located = await rest.get(path + "/lookup")
        assert located == {"topic": topic, "url": broker.url, "partitions": 0}
        async with client.producer(topic, name="p1") as producer:
            await producer.send(b"x")
            [line] = (await rest.get(path + "/producers"))["producers"]
            assert (line["producer"], line["published_messages"]) == ("p1", 1)
            await rest.delete(path + "/producers/p1")
            assert (await rest.get(path + "/producers"))["producers"] == []
        assert (await rest.get(path + "/stats"))["statistics"]["stored_messages"] == 1
        described = await rest.get(path)
        assert described == await rest.get(path) | {"statistics": described["statistics"]}
        await rest.delete(path)
        assert (await rest.get(path, 404))["code"] == 201


async def test_topics_are_listed_page_by_page(broker: BrokerProcess, topic: str) -> None:
    name = topic.split("/")[-1]
    async with Rest(broker) as rest:
        topics = [f"/{name}/t{number:02}" for number in range(25)]
        for one in topics:
            await rest.put(rest.path(one))
        seen: list[str] = []
        after = ""
        while True:
            page = await rest.get("/api/v1/topics", namespace=name, limit=10, after=after)
            assert len(page["topics"]) <= 10
            seen += [line["topic"] for line in page["topics"]]
            after = page["next"]
            if not after:
                break
        assert seen == topics


async def test_life_of_a_subscription(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, *"abcdefghij")
        path = rest.path(topic, "subscriptions", "s")
        body = {"type": "shared", "start": {"type": "offset", "offset": 1}}
        created = await rest.put(path, body)
        assert created["statistics"]["backlog_messages"] == 9
        assert (await rest.put(path, status=409))["name"] == "SubscriptionExists"
        peeked = await rest.get(path + "/peek", limit=2)
        assert [m["text"] for m in peeked["messages"]] == ["b", "c"]
        assert peeked["ranges"] == [{"topic": topic, "ranges": [[1, 3]]}]
        assert (await rest.post(path + "/skip", {"count": 2}))["messages"] == 2
        moved = await rest.post(path + "/seek", {"to": {"type": "latest"}})
        assert moved["positions"] == [{"topic": topic, "offset": 10}]
        await rest.post(path + "/seek", {"to": {"type": "earliest"}})
        assert (await rest.post(path + "/clear"))["messages"] == 10
        assert (await rest.post(path + "/unblock"))["messages"] == 0
        changed = await rest.patch(path, {"failure": {"redeliveries_max": 3, "delay_ms": 10}})
        assert changed["effective_failure"]["redeliveries_max"] == 3
        assert (await rest.patch(path, {"failure": None}))["failure"] is None
        kinds = {line["kind"] for line in (await rest.get(path + "/events"))["events"]}
        assert {"created", "sought", "skipped", "cleared"} <= kinds
        lines = (await rest.get(rest.path(topic, "subscriptions")))["subscriptions"]
        assert [line["subscription"] for line in lines] == ["s"]
        await rest.delete(path)
        assert (await rest.get(path, 404))["name"] == "SubscriptionNotFound"


async def test_broker_and_transactions(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        described = await rest.get("/api/v1/broker")
        assert described["url"] == broker.url
        assert described["statistics"]["connections"] >= 1
        async with client.producer(topic) as producer:
            with pytest.raises(danubius.DanubiusError):
                async with client.transaction() as transaction:
                    await transaction.send(producer, b"x")
                    lines = (await rest.get("/api/v1/transactions"))["transactions"]
                    assert transaction.id in [line["transaction"] for line in lines]
                    await rest.delete(f"/api/v1/transactions/{transaction.id}")
        assert (await rest.get(rest.path(topic, "messages")))["messages"] == []
        await rest.delete("/api/v1/transactions/12345678", 404)
        await rest.delete("/api/v1/transactions/many", 400)


async def test_the_same_as_over_the_native_protocol(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        await client.admin.create_topic(topic, partitions=2)
        described = await rest.get(rest.path(topic))
        native = await client.admin.describe_topic(topic)
        assert described["partitions"] == native.partitions == 2
        assert described["effective"]["retention_age_ms"] == native.effective.retention_age_ms


async def test_description_names_every_request_of_operators(broker: BrokerProcess) -> None:
    async with Rest(broker) as rest:
        description: dict[str, Any] = await rest.get("/openapi.json")
        page = (await rest.http.get("/api")).text
    assert description["openapi"] == "3.1.0"
    named = {
        operation["operationId"].lower()
        for methods in description["paths"].values()
        for operation in methods.values()
    }
    assert {request.__name__.lower() for request in ADMIN_REPLIES} <= named
    for path in description["paths"]:
        assert path in page
    assert broker.http_url in page
    assert "http://" not in page.replace(broker.http_url, "")
    for methods in description["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            assert {"400", "429", "503"} <= set(operation["responses"])


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/api/v1/nothing", 404, "/api lists"),
        ("GET", "/api/v1/topics/default/t/", 404, "/api lists"),
        ("POST", "/api/v1/topics", 405, "GET"),
        ("OPTIONS", "/api/v1/broker", 405, "GET"),
        ("GET", "/api/v1/topics?limit=0", 400, "1 to 1000"),
        ("GET", "/api/v1/topics?limit=many", 400, "limit"),
        ("GET", "/api/v1/topics?limit=1&limit=2", 400, "once"),
        ("GET", "/api/v1/topics?colour=red", 400, "colour"),
        ("GET", "/api/v1/topics/default/%20x", 400, "not allowed"),
        ("GET", "/api/v1/topics/default/%FF%FE", 400, "not allowed"),
        ("GET", f"/api/v1/topics/default/{'x' * 300}", 400, "at most 200"),
        ("GET", "/api/v1/topics/default/t/messages?start=yesterday", 400, "earliest"),
        ("GET", "/api/v1/topics/default/t/messages?start=99999999999999999999", 400, "earliest"),
        ("GET", "/api/v1/topics/default/t/messages?start=2026-01-01", 400, "zone"),
        ("DELETE", f"/api/v1/transactions/{2**70}", 400, "transaction"),
    ],
)
async def test_wrong_requests_say_what_would_be_right(
    broker: BrokerProcess, method: str, path: str, status: int, says: str
) -> None:
    async with Rest(broker) as rest:
        answer = await rest.http.request(method, path)
        assert answer.status_code == status
        assert says in answer.json()["detail"]
        if status == 405:
            assert says in answer.headers["allow"]


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"exist_ok": "\xff"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"a":' * 100_000, "application/json", 400),
        (b'{"partitions": 1e400}', "application/json", 400),
        (b'{"partitions": ' + b"9" * 5_000 + b"}", "application/json", 400),
        (b'{"spec": {"retention": {"age_ms": 1' + b"0" * 40 + b"}}}", "application/json", 400),
        (b'{"spec": {"policies": {"ttl_ms": 99999999999999999999}}}', "application/json", 400),
        (b'{"exist_ok": "\\ud800"}', "application/json", 400),
        (b"exist_ok=true", "application/x-www-form-urlencoded", 415),
        (b"<x/>", "text/xml", 415),
        (b"x" * 2_000_000, "application/json", 413),
    ],
)
async def test_wrong_bodies_are_refused(
    broker: BrokerProcess, topic: str, body: bytes, content_type: str, status: int
) -> None:
    async with Rest(broker) as rest:
        answer = await rest.http.put(
            rest.path(topic), content=body, headers={"content-type": content_type}
        )
        assert answer.status_code == status, answer.text
        assert answer.json()["detail"]
        await rest.get(rest.path(topic), 404)


async def test_many_changes_at_once(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(rest.put(rest.path(f"{topic}-{number}")))
        found = {line.topic for line in await client.admin.list_topics("default")}
        assert {f"{topic}-{number}" for number in range(20)} <= found


async def test_a_name_that_there_is_not_is_refused_with_the_nearest_one(
    broker: BrokerProcess, topic: str
) -> None:
    async with Rest(broker) as rest:
        path = rest.path(topic)
        for body, said in (
            ({"spec": {"retention": {"age": 5}}}, "no 'age' in retention; did you mean 'age_ms'?"),
            (
                {"spec": {"durabilty": "written"}},
                "no 'durabilty' in spec; did you mean 'durability'?",
            ),
            ({"spec": {"policies": {"tll_ms": 5}}}, "'tll_ms' in policies; did you mean 'ttl_ms'?"),
            ({"specs": 1}, "there is no 'specs'; did you mean 'spec'?"),
            ({"colour": 1}, "there is no 'colour'; it takes spec, partitions, exist_ok"),
        ):
            refused = await rest.put(path, body, 400)
            assert refused["name"] == "InvalidArgument"
            assert said in refused["detail"]
        await rest.get(path, 404)
        refused = await rest.get("/api/v1/topics", 400, limt=5)
        assert "there is no 'limt'; did you mean 'limit'?" in refused["detail"]
