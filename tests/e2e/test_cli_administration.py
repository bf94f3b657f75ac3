"""What operators do on the command line, each against a real broker: tables, --json, exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

import danubius.blocking
from danubius.cli.root import cli
from e2e.cli_calls import call, run, run_json
from patience import HANG_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


@pytest.fixture
def name(topic: str) -> str:
    """A namespace of the test's own."""
    return topic.rpartition("/")[2]


def fail(broker: BrokerProcess, *arguments: str, code: int = 1) -> str:
    done = call(broker, *arguments)
    assert done.code == code, done
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr


def facts(text: str) -> dict[str, str]:
    """The lines of a description."""
    pairs = (line.split("  ", 1) for line in text.splitlines() if "  " in line)
    return {key.strip(): value.strip() for key, value in pairs}


def test_a_namespace_from_creation_to_deletion(broker: BrokerProcess, name: str) -> None:
    run(
        broker, "namespaces", "create", name, "--ttl", "1h", "--no-auto-create",
        "--redeliveries-max", "5", "--redelivery-delay", "250ms",
    )  # fmt: skip
    described = facts(run(broker, "namespaces", "describe", name))
    assert described["ttl"] == "1 h"
    assert described["auto create"] == "no"
    assert described["quota bytes"] == "none (inherited)"
    assert "from 250 ms to 1 m, 5 redeliveries, then dead-letter" in described["failure"]
    updated = facts(
        run(broker, "namespaces", "update", name, "--inherit", "ttl", "--publish-rate", "10k",
            "--redeliveries-max", "none")
    )  # fmt: skip
    assert updated["ttl"] == "none (inherited)"
    assert updated["publish messages per s"] == "10,000/s"
    assert updated["failure"].endswith("from 250 ms to 1 m, redeliveries without limit")
    [found] = run_json(broker, "namespaces", "describe", name)
    assert found["policies"]["publish_messages_per_s"] == 10_000
    assert "ttl_ms" not in found["policies"]
    assert found["effective"]["auto_create"] is False
    listed = {line["namespace"]: line for line in run_json(broker, "namespaces", "list")}
    assert {"default", "system", name} <= listed.keys()
    assert name in run(broker, "namespaces", "list")
    run(broker, "topics", "create", f"/{name}/t")
    run(broker, "produce", f"/{name}/t", "-m", "x")
    [figures] = run_json(broker, "namespaces", "stats", name)
    assert (figures["topics"], figures["published_messages"]) == (1, 1)
    top = run_json(broker, "namespaces", "top", "--once", "--lines", "200")
    assert name in [line["namespace"] for line in top]
    assert run(broker, "namespaces", "top", "--once").startswith("NAMESPACE ")
    assert "--force" in fail(broker, "namespaces", "delete", name)
    run(broker, "namespaces", "delete", name, "--force", "--yes")
    assert name in fail(broker, "namespaces", "describe", name)


def test_a_namespace_that_exists(broker: BrokerProcess, name: str) -> None:
    run(broker, "namespaces", "create", name)
    assert "exists" in fail(broker, "namespaces", "create", name)
    assert run_json(broker, "namespaces", "create", name, "--exist-ok") == [
        {"namespace": name, "created": True}
    ]


def test_a_topic_has_policies_of_its_own(broker: BrokerProcess, topic: str) -> None:
    run(broker, "topics", "create", topic, "--ttl", "5m", "--retention-bytes", "1GiB")
    described = facts(run(broker, "topics", "describe", topic))
    assert described["ttl"] == "5 m"
    assert described["retention"] == "age 7 d, size 1.0 GiB"
    updated = facts(
        run(broker, "topics", "update", topic, "--retention-age", "forever", "--inherit", "ttl",
            "--quota", "5GB", "--quota-action", "drop-oldest", "--delete-after-ack")
    )  # fmt: skip
    assert updated["retention age"] == "without limit"
    assert updated["ttl"] == "none (inherited)"
    assert (updated["quota bytes"], updated["quota action"]) == ("4.7 GiB", "drop-oldest")
    assert updated["delete after ack"] == "yes"
    [found] = run_json(broker, "topics", "describe", topic)
    assert found["retention_age_ms"] is None
    assert found["policies"]["quota_bytes"] == 5_000_000_000


def test_a_partitioned_topic_grows(broker: BrokerProcess, topic: str) -> None:
    run(broker, "topics", "create", topic, "--partitions", "2")
    run(broker, "topics", "update", topic, "--partitions", "3")
    assert facts(run(broker, "topics", "describe", topic))["partitions"] == "3"
    run(broker, "produce", topic, "-m", "x", "--count", "30")
    [figures] = run_json(broker, "topics", "stats", topic)
    assert (figures["partitions"], figures["stored_messages"]) == (3, 30)
    assert figures["published_messages"] == 30
    assert "3" in fail(broker, "topics", "update", topic, "--partitions", "2")
    run(broker, "topics", "delete", topic, "--yes")
    fail(broker, "topics", "stats", topic)


def test_topics_top(broker: BrokerProcess, topic: str) -> None:
    run(broker, "produce", topic, "-m", "x")
    table = run(broker, "topics", "top", "--once", "--lines", "200")
    assert table.startswith("TOPIC ")
    lines = run_json(
        broker, "topics", "top", "--namespace", "default", "--rounds", "2", "--interval", "10ms",
        "--lines", "200",
    )  # fmt: skip
    assert [line["topic"] for line in lines].count(topic) in {0, 2}  # the first 200 are measured


def test_a_subscription_without_a_consumer(broker: BrokerProcess, topic: str) -> None:
    run(broker, "produce", topic, "-m", "a", "-m", "b", "-m", "c", "-m", "d")
    run(broker, "subscriptions", "create", topic, "s", "--type", "shared", "--from", "1",
        "--ack-timeout", "30s", "--jitter", "0.5")  # fmt: skip
    [line] = run_json(broker, "subscriptions", "list", topic)
    assert (line["subscription"], line["type"], line["backlog_messages"]) == ("s", "shared", 3)
    assert "s " in run(broker, "subscriptions", "list", topic)
    described = facts(run(broker, "subscriptions", "describe", topic, "s"))
    assert described["backlog messages"] == "3"
    assert described["failure"].startswith("ack timeout 30 s, exponential delay")
    [found] = run_json(broker, "subscriptions", "describe", topic, "s")
    assert found["failure"]["jitter"] == 0.5
    [figures] = run_json(broker, "subscriptions", "stats", topic, "s")
    ages = {name: figures[name] for name in ("backlog_age_s", "idle_s")}
    assert figures == found["statistics"] | ages
    assert "already" in fail(broker, "subscriptions", "create", topic, "s")
    table = run(broker, "subscriptions", "top", topic, "--once")
    assert table.splitlines()[1].split()[:2] == ["s", "shared"]
    run(broker, "subscriptions", "delete", topic, "s")
    assert run(broker, "subscriptions", "list", topic) == f"{topic} has no subscriptions\n"
    assert "has no subscription" in fail(broker, "subscriptions", "describe", topic, "s")


def test_a_subscription_is_moved(broker: BrokerProcess, topic: str) -> None:
    run(broker, "produce", topic, "-m", "a", "-m", "b", "-m", "c", "-m", "d")
    run(broker, "subscriptions", "create", topic, "s", "--from", "earliest")
    peeked = run_json(broker, "subscriptions", "peek", topic, "s", "--count", "2")
    assert [line["payload"] for line in peeked] == ["a", "b"]
    said = run(broker, "subscriptions", "skip", topic, "s", "1")
    assert said == f"skipped 1 message of subscription s of {topic}\n"
    assert run(broker, "subscriptions", "peek", topic, "s") == "b\n"
    assert run_json(broker, "subscriptions", "seek", topic, "s", "--to", "3") == [
        {"topic": topic, "offset": 3}
    ]
    assert run(broker, "subscriptions", "peek", topic, "s", "--count", "9") == "d\n"
    assert "offset 0" in run(broker, "subscriptions", "seek", topic, "s", "--to", "earliest")
    [cleared] = run_json(broker, "subscriptions", "clear", topic, "s")
    assert cleared["messages"] == 4
    assert run(broker, "subscriptions", "peek", topic, "s") == "everything of s is acknowledged\n"
    kinds = [event["kind"] for event in run_json(broker, "subscriptions", "events", topic, "s")]
    # What repeats within a second is one event.
    assert list(dict.fromkeys(kinds)) == ["created", "skipped", "sought", "cleared"]
    assert "cleared" in run(broker, "subscriptions", "events", topic, "s").splitlines()[-1]


def test_who_is_there_and_sent_away(broker: BrokerProcess, topic: str) -> None:
    with (
        danubius.blocking.connect(broker.url) as client,
        client.producer(topic, name="till") as producer,
        client.consumer(topic, subscription="s", type="shared", name="cook") as consumer,
    ):
        producer.send(b"x")
        consumer.receive(timeout=HANG_S)
        [line] = run_json(broker, "producers", "list", topic)
        assert (line["producer"], line["published_messages"]) == ("till", 1)
        assert "till" in run(broker, "producers", "list", topic)
        assert facts(run(broker, "producers", "describe", topic, "till"))["access"] == "shared"
        assert "till" in run(broker, "producers", "top", topic, "--once")
        [line] = run_json(broker, "consumers", "list", topic, "-s", "s")
        assert (line["consumer"], line["unacked_messages"]) == ("cook", 1)
        assert "cook" in run(broker, "consumers", "list", topic)
        described = facts(run(broker, "consumers", "describe", topic, "cook"))
        assert described["unacked messages"] == "1"
        assert "cook" in run(broker, "consumers", "top", topic, "--once")
        assert "till is attached" not in fail(broker, "producers", "describe", topic, "nobody")
        assert "consumers list" in fail(broker, "consumers", "describe", topic, "nobody")
        run(broker, "producers", "disconnect", topic, "till")
        with pytest.raises(danubius.ProducerFenced):
            producer.send(b"y")
        run(broker, "consumers", "disconnect", topic, "s", "cook")
    assert run(broker, "producers", "list", topic).startswith("no producers")
    assert "nobody" in fail(broker, "consumers", "disconnect", topic, "s", "nobody")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "update", "/default/x"],
        ["topics", "update", "/default/x", "--ttl", "1h", "--inherit", "ttl"],
        ["topics", "update", "/default/x", "--inherit", "zebra"],
        ["topics", "update", "/default/x", "--ttl", "soon"],
        ["topics", "create", "/default/x", "--partitions", "5000"],
        ["topics", "create", "/default/x", "--jitter", "2"],
        ["namespaces", "update", "x"],
        ["namespaces", "create", "no/slash"],
        ["subscriptions", "seek", "/default/x", "s"],
        ["subscriptions", "seek", "/default/x", "s", "--to", "nowhere"],
        ["subscriptions", "skip", "/default/x", "s", "-1"],
        ["subscriptions", "peek", "/default/x", "s", "--count", "0"],
        ["subscriptions", "update", "/default/x", "s"],
        ["subscriptions", "update", "/default/x", "s", "--inherit", "--then", "drop"],
        ["producers", "disconnect", "/default/x"],
        ["consumers", "top", "/default/x", "--interval", "x"],
    ],
    ids=" ".join,
)
def test_wrong_usage_of_operators_is_2(broker: BrokerProcess, arguments: list[str]) -> None:
    fail(broker, *arguments, code=2)


def test_what_is_not_there_is_one_line_and_1(broker: BrokerProcess, topic: str) -> None:
    for arguments in (
        ["topics", "update", topic, "--ttl", "1h"],
        ["topics", "stats", topic],
        ["subscriptions", "list", topic],
        ["subscriptions", "peek", topic, "s"],
        ["producers", "list", topic],
        ["consumers", "top", topic, "--once"],
        ["namespaces", "update", "nowhere", "--ttl", "1h"],
    ):
        assert "does not exist" in fail(broker, *arguments)


def test_every_command_explains_itself() -> None:
    context = click.Context(cli)
    for word in ("topics", "namespaces", "subscriptions", "producers", "consumers"):
        group = cli.get_command(context, word)
        assert isinstance(group, click.Group)
        for name, command in group.commands.items():
            said = command.get_help(click.Context(command, parent=context, info_name=name))
            assert command.help
            assert "--json" in said
            assert "--url" in said


def test_dead_letters_are_shown_sent_back_and_given_up(broker: BrokerProcess, topic: str) -> None:
    run(broker, "topics", "create", topic)
    run(broker, "subscriptions", "create", topic, "s", "--type", "shared", "--from", "earliest")
    said = run(broker, "subscriptions", "update", topic, "s", "--redeliveries-max", "0")
    assert "0 redeliveries, then dead-letter" in said
    assert run(broker, "subscriptions", "dead-letters", topic, "s") == "s has no dead letters\n"
    with (
        danubius.blocking.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", type="shared") as consumer,
    ):
        for key, payload in ((b"k", b"tea"), (b"\xff", b"cake")):
            producer.send(payload, key=key)
            consumer.nack(consumer.receive(timeout=HANG_S), reason="cold")
        _wait_for_dead_letters(broker, topic, 2)
        table = run(broker, "subscriptions", "dead-letters", topic, "s").splitlines()
        assert table[1].split()[-1] == "tea"
        assert "cold" in table[1]
        first, second = run_json(broker, "subscriptions", "dead-letters", topic, "s")
        assert (first["key"], first["payload_start"], first["reason"]) == ("k", "tea", "cold")
        assert first["original_offset"] == 0
        assert second["key_base64"] == "/w=="
        [sent] = run_json(broker, "subscriptions", "redrive", topic, "s", "--count", "1")
        assert sent["messages"] == 1
        again = consumer.receive(timeout=HANG_S)
        assert again.payload == b"tea"
        consumer.ack(again)
    said = run(broker, "subscriptions", "purge", topic, "s")
    assert said == f"gave up 1 message of subscription s of {topic}\n"
    assert run_json(broker, "subscriptions", "dead-letters", topic, "s") == []


def test_a_blocked_subscription_is_released(broker: BrokerProcess, topic: str) -> None:
    run(broker, "topics", "create", topic)
    run(broker, "subscriptions", "create", topic, "s", "--from", "earliest", "--then", "block",
        "--redeliveries-max", "0")  # fmt: skip
    with (
        danubius.blocking.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s") as consumer,
    ):
        producer.send(b"tea")
        consumer.nack(consumer.receive(timeout=HANG_S))
        for _ in range(100):
            if run_json(broker, "subscriptions", "stats", topic, "s")[0]["is_blocked"]:
                break
        [released] = run_json(broker, "subscriptions", "unblock", topic, "s")
        assert released["messages"] == 1
        assert consumer.receive(timeout=HANG_S).payload == b"tea"
    run(broker, "subscriptions", "update", topic, "s", "--inherit")
    assert run_json(broker, "subscriptions", "describe", topic, "s")[0]["failure"] is None


def _wait_for_dead_letters(broker: BrokerProcess, topic: str, count: int) -> None:
    """They move behind the consumer's back."""
    for _ in range(100):
        if len(run_json(broker, "subscriptions", "dead-letters", topic, "s")) >= count:
            return
    raise AssertionError(run_json(broker, "subscriptions", "stats", topic, "s"))
