"""`danubius topics`: list, create, describe and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

import danubius
from danubius.cli.event_loop import run_async
from danubius.cli.options import (
    byte_count,
    json_option,
    namespace_name,
    seconds,
    topic_name,
    url_option,
)
from danubius.cli.output import human_bytes, human_count, print_facts, print_json, print_table
from danubius.model.policy import effective
from danubius.model.topic import retention_of

if TYPE_CHECKING:
    from danubius.client.options import DurabilityName
    from danubius.model.topic import Retention
    from danubius.wire.commands import TopicDescribed, TopicSummary


@click.group(
    epilog="""\b
Examples:
  danubius topics list
  danubius topics create /default/orders --durability written --retention-age 12h
  danubius topics describe /default/orders --json
  danubius topics delete /default/orders
"""
)
def topics() -> None:
    """List, create, describe and delete topics."""


@topics.command("list")
@click.option("--namespace", type=namespace_name, metavar="NAME", help="Only this namespace.")
@json_option
@url_option
def list_topics(namespace: str | None, as_json: bool, url: str) -> None:
    """List all topics, in order of their names."""

    async def ask() -> list[TopicSummary]:
        async with danubius.connect(url) as client:
            return await client.list_topics(namespace)

    found = run_async(ask())
    if as_json:
        for topic in found:
            print_json(_as_facts(topic))
        return
    if not found:
        click.echo("no topics" + (f" in namespace {namespace}" if namespace else ""))
        return
    columns = (
        "TOPIC",
        "DISPATCH",
        "DURABILITY",
        "MESSAGES",
        "STORED",
        "PRODUCERS",
        "SUBSCRIPTIONS",
    )
    print_table(
        columns,
        [
            (
                topic.topic,
                topic.spec.dispatch,
                _durability(topic),
                human_count(topic.end_offset - topic.start_offset),
                human_bytes(topic.stored_bytes),
                topic.producers,
                topic.subscriptions,
            )
            for topic in found
        ],
    )


@topics.command("create")
@click.argument("topic", type=topic_name)
@click.option("--non-reliable", is_flag=True, help="Hand to whoever listens; store nothing.")
@click.option(
    "--durability", type=click.Choice(["synced", "written"]), default="synced", show_default=True,
    help="What is true when a publisher is answered: on the disk, or in the page cache.",
)  # fmt: skip
@click.option(
    "--retention-age", type=seconds, default="7d", show_default=True, metavar="AGE",
    help="Keep acknowledged messages this long: 90s, 12h, 30d.",
)  # fmt: skip
@click.option(
    "--retention-bytes", type=byte_count, metavar="SIZE",
    help="Keep at most this many acknowledged bytes, for example 10GiB (the default is no limit).",
)  # fmt: skip
@click.option("--exist-ok", is_flag=True, help="Do not fail if it exists with the same settings.")
@json_option
@url_option
def create_topic(
    topic: str,
    non_reliable: bool,
    durability: DurabilityName,
    retention_age: int,
    retention_bytes: int | None,
    exist_ok: bool,
    as_json: bool,
    url: str,
) -> None:  # one parameter an option
    """Create TOPIC, a name such as /default/orders."""

    async def ask() -> None:
        async with danubius.connect(url) as client:
            await client.create_topic(
                topic,
                dispatch="non-reliable" if non_reliable else "reliable",
                durability=durability,
                retention_age=retention_age,
                retention_bytes=retention_bytes,
                exist_ok=exist_ok,
            )

    run_async(ask())
    if as_json:
        print_json({"topic": topic, "created": True})
    else:
        click.echo(f"created {topic}")


@topics.command("describe")
@click.argument("topic", type=topic_name)
@json_option
@url_option
def describe_topic(topic: str, as_json: bool, url: str) -> None:
    """Show what TOPIC holds, who writes to it and who reads from it."""

    async def ask() -> TopicDescribed:
        async with danubius.connect(url) as client:
            return await client.describe_topic(topic)

    found = run_async(ask())
    summary = found.summary
    if as_json:
        facts = _as_facts(summary) | {"ledgers": found.ledgers, "producers": found.producers}
        facts["subscriptions"] = [msgspec.structs.asdict(each) for each in found.subscriptions]
        print_json(facts)
        return
    retention = _retention(summary)
    age = "no limit" if retention.age_ms is None else f"{retention.age_ms / 3_600_000:g} h"
    size = "no limit" if retention.size_bytes is None else human_bytes(retention.size_bytes)
    print_facts(
        {
            "topic": summary.topic,
            "dispatch": summary.spec.dispatch,
            "durability": _durability(summary),
            "offsets": f"from {summary.start_offset}, next {summary.end_offset}",
            "messages": human_count(summary.end_offset - summary.start_offset),
            "stored": f"{human_bytes(summary.stored_bytes)}, ledgers: {found.ledgers}",
            "retention": f"age {age}, size {size}",
            "producers": ", ".join(found.producers) or "none",
        }
    )
    if not found.subscriptions:
        click.echo("\nno subscriptions")
        return
    columns = ("SUBSCRIPTION", "TYPE", "CONSUMERS", "FLOOR", "BACKLOG", "UNACKED", "DROPPED")
    print_table(
        columns,
        [
            (
                each.name,
                each.type,
                ", ".join(each.consumers) or "none",
                each.floor,
                each.backlog,
                each.unacked,
                each.dropped,
            )
            for each in found.subscriptions
        ],
    )


@topics.command("delete")
@click.argument("topic", type=topic_name)
@json_option
@url_option
def delete_topic(topic: str, as_json: bool, url: str) -> None:
    """Delete TOPIC with its messages and subscriptions."""

    async def ask() -> None:
        async with danubius.connect(url) as client:
            await client.delete_topic(topic)

    run_async(ask())
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        click.echo(f"deleted {topic}")


def _durability(summary: TopicSummary) -> str:
    return "none" if summary.spec.dispatch == "non-reliable" else str(summary.spec.durability)


def _retention(summary: TopicSummary) -> Retention:
    """The topic's own, on top of the built-in defaults."""
    return retention_of(effective(summary.spec.layer()))


def _as_facts(summary: TopicSummary) -> dict[str, object]:
    return {
        "topic": summary.topic,
        "dispatch": summary.spec.dispatch,
        "durability": _durability(summary),
        "start_offset": summary.start_offset,
        "end_offset": summary.end_offset,
        "stored_bytes": summary.stored_bytes,
        "retention_age_ms": _retention(summary).age_ms,
        "retention_bytes": _retention(summary).size_bytes,
        "producers": summary.producers,
        "subscriptions": summary.subscriptions,
    }
