"""Brokers, transactions, partitioned topics in lists, and sending later or once on the command line."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
import pytest

import danubius
from danubius.cli.root import cli
from e2e.cli_calls import call, run, run_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.broker_process import BrokerProcess


def test_the_broker_is_listed_described_and_measured(broker: BrokerProcess, topic: str) -> None:
    run(broker, "produce", topic, "-m", "one", "-m", "two")
    assert broker.url in run(broker, "brokers", "list")
    [line] = run_json(broker, "brokers", "list")
    assert line["version"] == danubius.__version__
    assert "retention age" in run(broker, "brokers", "describe")
    [figures] = run_json(broker, "brokers", "stats")
    assert figures["published_messages"] >= 2
    assert figures["journal_bytes"] > 0
    assert "CONNECTIONS" in run(broker, "brokers", "top", "--once")


async def test_transactions_are_listed_described_and_aborted(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        async with contextlib.AsyncExitStack() as stack:
            transaction = await stack.enter_async_context(client.transaction())
            await transaction.send_many(producer, [b"never"] * 5)
            number = str(transaction.id)
            listed = await asyncio.to_thread(run_json, broker, "transactions", "list")
            assert transaction.id in [line["transaction"] for line in listed]
            [line] = await asyncio.to_thread(run_json, broker, "transactions", "describe", number)
            assert line["state"] == "open"
            done = await asyncio.to_thread(run, broker, "transactions", "abort", number)
            assert done == f"aborted transaction {number}\n"
            with pytest.raises(danubius.DanubiusError):
                await transaction.commit()
        gone = await asyncio.to_thread(call, broker, "transactions", "describe", number)
        assert gone.code == 1
        assert "transactions list" in gone.stderr
        again = await asyncio.to_thread(call, broker, "transactions", "abort", number)
        assert again.code == 1


def test_a_partitioned_topic_is_one_line_unless_asked(broker: BrokerProcess, topic: str) -> None:
    run(broker, "topics", "create", topic, "--partitions", "3")
    run(broker, "produce", topic, "-m", "a", "-m", "b")
    lines = run_json(broker, "topics", "list")
    [line] = [line for line in lines if line["topic"].startswith(topic)]
    assert (line["topic"], line["partitions"], line["stored_messages"]) == (topic, 3, 2)
    each = run_json(broker, "topics", "list", "--partitions")
    names = [line["topic"] for line in each if line["topic"].startswith(topic)]
    assert names == [f"{topic}-part-{n}" for n in range(3)]
    assert f"{topic}-part-2" in run(broker, "topics", "list", "--partitions")
    assert f"{topic}-part-2" not in run(broker, "topics", "list")


def test_events_say_how_many_messages_and_why(broker: BrokerProcess, topic: str) -> None:
    run(broker, "produce", topic, "-m", "a", "-m", "b", "-m", "c")
    run(broker, "subscriptions", "create", topic, "s", "--from", "earliest")
    run(broker, "subscriptions", "skip", topic, "s", "2")
    text = run(broker, "subscriptions", "events", topic, "s")
    assert text.splitlines()[-1].endswith("skipped         2 messages up to offset 1")
    lines = run_json(broker, "subscriptions", "events", topic, "s")
    assert [(line["kind"], line["messages"]) for line in lines] == [("created", 0), ("skipped", 2)]


def test_messages_are_scheduled(broker: BrokerProcess, topic: str) -> None:
    said = run(broker, "produce", topic, "-m", "later", "--deliver-after", "1h")
    assert said.startswith(f"scheduled 1 message to {topic}")
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    run(broker, "produce", topic, "-m", "much later", "--deliver-at", tomorrow)
    [figures] = run_json(broker, "topics", "stats", topic)
    assert (figures["delayed_messages"], figures["stored_messages"]) == (2, 0)
    run(broker, "produce", topic, "-m", "past", "--deliver-at", "2020-01-01T00:00:00+01:00")
    taken = run_json(
        broker, "consume", topic, "--subscription", "s", "--from", "earliest", "--count", "1"
    )
    assert [line["payload"] for line in taken] == ["past"]


def test_a_command_that_is_repeated_stores_each_message_once(
    broker: BrokerProcess, topic: str
) -> None:
    how = ("--name", "loader", "--resume")
    [first] = run_json(broker, "produce", topic, "-m", "a", "-m", "b", *how)
    assert (first["count"], first["skipped"], first["last_offset"]) == (2, 0, 1)
    said = run(broker, "produce", topic, "-m", "a", "-m", "b", "-m", "c", *how)
    assert said.startswith(f"stored 1 message to {topic} (2 were stored before) at offset 2")
    [line] = [one for one in run_json(broker, "topics", "list") if one["topic"] == topic]
    assert line["stored_messages"] == 3


def test_only_a_plain_topic_can_be_resumed(broker: BrokerProcess, topic: str) -> None:
    run(broker, "topics", "create", topic, "--partitions", "2")
    done = call(broker, "produce", topic, "-m", "a", "--name", "loader", "--resume")
    assert done.code == 1
    assert f"{topic} is partitioned" in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--resume"], "needs --name"),
        (["--deliver-after", "1s", "--deliver-at", "2030-01-01"], "not both"),
        (["--deliver-at", "tomorrow"], "2026-01-31T12:00:00"),
        (["--non-reliable", "--deliver-after", "1s"], "stores nothing"),
        (["--name", "n", "--resume", "--deliver-after", "1s"], "delivered at once"),
    ],
)
def test_options_that_do_not_fit(broker: BrokerProcess, options: list[str], sentence: str) -> None:
    done = call(broker, "produce", "/default/none", "-m", "x", *options)
    assert done.code == 2
    assert sentence in " ".join(done.stderr.split())


def commands(group: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), group
    if isinstance(group, click.Group):
        with click.Context(group) as context:
            for name in group.list_commands(context):
                command = group.get_command(context, name)
                assert command is not None
                yield from commands(command, *path, name)


@pytest.mark.parametrize(
    ("name", "command"), [pytest.param(*one, id=one[0] or "danubius") for one in commands(cli)]
)
def test_every_command_and_option_says_what_it_does(name: str, command: click.Command) -> None:
    assert command.help, name
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{name} {parameter.name}"
