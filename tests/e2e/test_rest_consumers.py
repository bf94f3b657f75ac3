"""Consuming over HTTP: sessions with leases, acknowledgements, expiry, and what ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import danubius
from e2e.rest_client import Rest
from e2e.traffic import numbered, take
from patience import HANG_S, SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


def texts(messages: list[Any]) -> list[str]:
    return [message["text"] for message in messages]


async def test_receive_acknowledge_and_go_on(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, *"abcde")
        session = await rest.open_consumer(topic, type="shared")
        assert texts(await rest.receive(session, limit=2)) == ["a", "b"]
        assert texts(await rest.receive(session, limit=2)) == ["c", "d"]
        await rest.post(session + "/ack", {"offsets": [0], "ranges": [[1, 3]]}, 204)
        await rest.delete(session)
        await rest.post(session + "/receive", {}, 404)
        again = await rest.open_consumer(topic, type="shared")
        assert texts(await rest.receive(again)) == ["d", "e"]
        await rest.post(again + "/ack", {"up_to": 4}, 204)
        described = await rest.get(rest.path(topic, "subscriptions", "s"))
        assert described["statistics"]["backlog_messages"] == 0


async def test_a_session_shares_with_clients(broker: BrokerProcess, topic: str) -> None:
    """Exact credit: what a session did not ask for goes to others at once."""
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        await rest.publish(topic, *map(str, range(20)))
        session = await rest.open_consumer(topic, type="shared")
        mine = await rest.receive(session, limit=5)
        assert len(mine) == 5
        async with client.consumer(topic, subscription="s", type="shared") as consumer:
            others = await take(consumer, 15)
        assert sorted([int(m["text"]) for m in mine] + [int(m.payload) for m in others]) == list(
            range(20)
        )


async def test_a_long_poll_ends_with_the_first_message(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, asyncio.TaskGroup() as tasks:
        await rest.put(rest.path(topic))
        session = await rest.open_consumer(topic)
        assert await rest.receive(session, wait_ms=10) == []
        waiting = tasks.create_task(rest.receive(session, wait_ms=30_000))
        await asyncio.sleep(0)
        await rest.publish(topic, "it")
        assert texts(await waiting) == ["it"]


async def test_only_one_request_receives_at_a_time(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, asyncio.TaskGroup() as tasks:
        await rest.put(rest.path(topic))
        session = await rest.open_consumer(topic)
        both = [
            tasks.create_task(rest.http.post(session + "/receive", json={"wait_ms": 20_000}))
            for _ in range(2)
        ]
        done, pending = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        [refused] = done
        assert refused.result().status_code == 429
        assert int(refused.result().headers["retry-after"]) >= 1
        await rest.publish(topic, "x")
        [other] = pending
        assert texts((await other).json()["messages"]) == ["x"]


async def test_what_is_given_back_comes_again(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, "a", "b")
        session = await rest.open_consumer(topic, type="shared")
        await rest.receive(session)
        await rest.post(session + "/nack", {"offsets": [1], "reason": "not today"}, 204)
        [again] = await rest.receive(session)
        assert (again["text"], again["redelivery_count"]) == ("b", 1)


async def test_a_lease_that_runs_out_is_delivered_again(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, "a")
        session = await rest.open_consumer(topic, type="shared", ack_timeout_ms=1_000)
        [first] = await rest.receive(session)
        [again] = await rest.receive(session, wait_ms=30_000)
        assert first["redelivery_count"] == 0
        assert again["redelivery_count"] >= 1


async def test_an_idle_session_expires_and_others_get_its_messages(
    broker: BrokerProcess, topic: str
) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, "a")
        gone = await rest.open_consumer(topic, type="shared", idle_timeout_ms=5_000)
        assert texts(await rest.receive(gone)) == ["a"]
        other = await rest.open_consumer(topic, type="shared")
        assert texts(await rest.receive(other, wait_ms=30_000)) == ["a"]
        await rest.get(gone, 404)


async def test_dead_letters_by_http(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, "poison", "cure")
        failure = {"redeliveries_max": 1, "then": "dead-letter"}
        session = await rest.open_consumer(topic, type="shared", failure=failure)
        for _ in range(2):
            got = await rest.receive(session)
            bad = [m["offset"] for m in got if m["text"] == "poison"]
            good = [m["offset"] for m in got if m["text"] == "cure"]
            if good:
                await rest.post(session + "/ack", {"offsets": good}, 204)
            await rest.post(session + "/nack", {"offsets": bad, "reason": "bitter"}, 204)
        path = rest.path(topic, "subscriptions", "s", "dead-letters")
        letters: list[Any] = []
        async with asyncio.timeout(HANG_S):
            while not letters:
                letters = (await rest.get(path))["dead_letters"]
        assert letters[0]["original_topic"] == topic
        assert letters[0]["reason"] == "bitter"
        assert (await rest.post(path + "/redrive"))["messages"] == 1
        [back] = await rest.receive(session)
        assert back["text"] == "poison"
        assert (await rest.delete(path, 200))["messages"] == 0


async def test_a_partitioned_topic_is_consumed_as_a_whole(
    broker: BrokerProcess, topic: str
) -> None:
    async with Rest(broker) as rest:
        await rest.put(rest.path(topic), {"partitions": 3})
        await rest.publish(topic, *map(str, range(30)))
        session = await rest.open_consumer(topic, type="shared")
        seen: list[Any] = []
        while len(seen) < 30:
            seen += await rest.receive(session, limit=10)
        assert sorted(int(m["text"]) for m in seen) == list(range(30))
        problem = await rest.post(session + "/ack", {"offsets": [0]}, 400)
        assert "-part-0" in problem["detail"]
        for part in {m["topic"] for m in seen}:
            offsets = [m["offset"] for m in seen if m["topic"] == part]
            await rest.post(session + "/ack", {"topic": part, "offsets": offsets}, 204)
        # The topic grows under the session.
        await rest.patch(rest.path(topic), {"partitions": 5})
        await rest.publish(topic, *map(str, range(30, 60)))
        seen = []
        while len(seen) < 30:
            seen += await rest.receive(session, limit=10)
        assert sorted(int(m["text"]) for m in seen) == list(range(30, 60))
        assert len({m["topic"] for m in seen}) == 5


async def test_seek_under_a_session(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, "a", "b")
        session = await rest.open_consumer(topic, type="shared")
        assert len(await rest.receive(session)) == 2
        await rest.post(session + "/ack", {"up_to": 1}, 204)
        seek = rest.path(topic, "subscriptions", "s", "seek")
        moved = await rest.post(seek, {"to": {"type": "earliest"}})
        assert moved["positions"] == [{"topic": topic, "offset": 0}]
        assert texts(await rest.receive(session)) == ["a", "b"]


async def test_a_session_ends_with_its_topic_and_says_so(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, asyncio.TaskGroup() as tasks:
        await rest.publish(topic, "a")
        session = await rest.open_consumer(topic, type="shared")
        await rest.receive(session)
        waiting = tasks.create_task(rest.post(session + "/receive", {"wait_ms": 30_000}, 409))
        await asyncio.sleep(SOON_S)
        await rest.delete(rest.path(topic))
        assert (await waiting)["name"] == "TopicDeleted"
        await rest.post(session + "/receive", {}, 404)


async def test_exclusive_and_wrong_types_are_refused(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, "a")
        await rest.open_consumer(topic)
        path = rest.path(topic, "subscriptions", "s", "consumers")
        assert (await rest.post(path, {}, 409))["name"] == "SubscriptionBusy"
        assert (await rest.post(path, {"type": "shared"}, 409))[
            "name"
        ] == "SubscriptionTypeMismatch"
        await rest.post(path, {"type": "sharing"}, 400)
        await rest.post(path, {"start": {"type": "offset", "offset": -1}}, 400)
        await rest.post(path, {"start": {"type": "offset", "offset": 2**70}}, 400)
        await rest.post(path, {"ack_timeout_ms": 1}, 400)
        await rest.post(path, {"consumer": "no good"}, 400)
        listed = await rest.get(rest.path(topic, "consumers"))
        assert len(listed["consumers"]) == 1


async def test_an_operator_ends_a_session(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, "a")
        session = await rest.open_consumer(topic, consumer="me")
        await rest.delete(rest.path(topic, "subscriptions", "s", "consumers", "me"))
        assert (await rest.post(session + "/receive", {}, 409))["detail"]
        await rest.get(session, 404)


async def test_large_backlog_keeps_its_order(broker: BrokerProcess, topic: str) -> None:
    sent = [payload.decode() for payload in numbered(3_000)]
    async with Rest(broker) as rest:
        for start in range(0, 3_000, 1_000):
            await rest.publish(topic, *sent[start : start + 1_000])
        session = await rest.open_consumer(topic)
        seen: list[str] = []
        while len(seen) < len(sent):
            messages = await rest.receive(session, limit=700)
            seen += texts(messages)
            await rest.post(session + "/ack", {"up_to": messages[-1]["offset"]}, 204)
    assert seen == sent
