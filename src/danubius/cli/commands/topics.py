"""`danubius topics`: list, create, describe, update, delete, figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

import danubius
from danubius.cli.commands.administering import (
    ask,
    duration,
    policy_facts,
    print_done,
    print_figures,
    print_lines,
    rate,
    to_json,
)
from danubius.cli.commands.asking import ask_to_lose, check_can_ask, yes_option
from danubius.cli.commands.policy_options import (
    build_policies,
    changes_failure,
    inherit_option,
    is_empty,
    topic_policy_options,
)
from danubius.cli.commands.subscriptions import COLUMNS as SUBSCRIPTION_COLUMNS
from danubius.cli.commands.top import MEASURED_MAX, measure_each, run_top, top_options
from danubius.cli.commands.topic_ledgers import list_ledgers, offload_topic
from danubius.cli.commands.topic_reading import read_topic
from danubius.cli.event_loop import run_async
from danubius.cli.options import json_option, namespace_name, topic_name, url_option
from danubius.cli.output import (
    human_bytes,
    human_count,
    print_facts,
    print_json,
    print_line,
    print_table,
    print_text,
)
from danubius.model.policy import PARTITIONS_MAX, effective
from danubius.model.topic import Dispatch, Durability, TopicSpec, retention_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.cli.output import Cell
    from danubius.client.administration import Administration
    from danubius.model import admin_replies
    from danubius.model.admin_replies import SubscriptionSummary as Line
    from danubius.model.statistics import TopicStatistics
    from danubius.wire.commands import TopicDescribed, TopicSummary


@click.group(
    epilog="""\b
Examples:
  danubius topics list
  danubius topics create /default/orders --durability written --retention-age 12h
  danubius topics create /default/clicks --partitions 8
  danubius topics update /default/orders --publish-rate 1000 --inherit retention-age
  danubius topics describe /default/orders --json
  danubius topics read /default/orders --count 10
  danubius topics ledgers /default/orders
  danubius topics offload /default/orders
  danubius topics top
  danubius topics delete /default/orders
"""
)
def topics() -> None:
    """List, create, describe, update, read, delete and watch topics."""


topics.add_command(list_ledgers)
topics.add_command(offload_topic)
topics.add_command(read_topic)

_NAMED_MAX: Final = 5
"""Subscriptions that are named in a question."""

_LIST: Final[dict[str, Callable[[admin_replies.TopicSummary], Cell]]] = {
    "TOPIC": lambda t: t.topic,
    "PARTITIONS": lambda t: t.partitions or "",
    "DISPATCH": lambda t: t.dispatch,
    "DURABILITY": lambda t: _durability(t.dispatch, t.durability),
    "MESSAGES": lambda t: human_count(t.stored_messages),
    "STORED": lambda t: human_bytes(t.stored_bytes),
    "PRODUCERS": lambda t: t.producers,
    "SUBSCRIPTIONS": lambda t: t.subscriptions,
}
_EACH: Final[dict[str, Callable[[TopicSummary], Cell]]] = {
    "TOPIC": lambda t: t.topic,
    "DISPATCH": lambda t: t.spec.dispatch,
    "DURABILITY": lambda t: _durability(t.spec.dispatch, t.spec.durability),
    "MESSAGES": lambda t: human_count(t.end_offset - t.start_offset),
    "STORED": lambda t: human_bytes(t.stored_bytes),
    "PRODUCERS": lambda t: t.producers,
    "SUBSCRIPTIONS": lambda t: t.subscriptions,
}


@topics.command("list")
@click.option("--namespace", type=namespace_name, metavar="NAME", help="Only this namespace.")
@click.option("--partitions", is_flag=True, help="Show each partition as the topic it is.")
@json_option
@url_option
def list_topics(namespace: str | None, partitions: bool, as_json: bool, url: str) -> None:
    """List all topics, in order of their names; a partitioned one is one line."""
    nothing = "no topics" + (f" in namespace {namespace}" if namespace else "")
    if not partitions:
        found = ask(url, lambda admin: admin.list_topics(namespace))
        print_lines(found, _LIST, json=as_json, nothing=nothing)
        return

    async def ask_each() -> list[TopicSummary]:
        async with danubius.connect(url) as client:
            return await client.list_topics(namespace)

    each = run_async(ask_each)
    if as_json:
        for topic in each:
            print_json(_as_facts(topic))
    else:
        print_lines(each, _EACH, json=False, nothing=nothing)


@topics.command("create")
@click.argument("topic", type=topic_name)
@click.option("--non-reliable", is_flag=True, help="Hand to whoever listens; store nothing.")
@click.option(
    "--durability", type=click.Choice(["synced", "written"]), default="synced", show_default=True,
    help="What is true when a publisher is answered: on the disk, or in the page cache.",
)  # fmt: skip
@click.option(
    "--partitions", type=click.IntRange(0, PARTITIONS_MAX), default=0, show_default=True, metavar="N",
    help="Consist of so many topics, which share its messages by their keys; 0: be a plain topic.",
)  # fmt: skip
@topic_policy_options
@click.option("--exist-ok", is_flag=True, help="Do not fail if it exists with the same settings.")
@json_option
@url_option
def create_topic(
    topic: str,
    non_reliable: bool,
    durability: str,
    partitions: int,
    exist_ok: bool,
    as_json: bool,
    url: str,
    **policies: Any,  # Any: the values of topic_policy_options
) -> None:
    """Create TOPIC, a name such as /default/orders.

    Policies that are not given are those of its namespace.
    """
    spec = TopicSpec(
        Dispatch.NON_RELIABLE if non_reliable else Dispatch.RELIABLE,
        Durability(durability),
        policies=build_policies(policies),
    )
    ask(url, lambda a: a.create_topic(topic, spec, partitions=partitions, exist_ok=exist_ok))
    print_done(f"created {topic}", {"topic": topic, "created": True}, json=as_json)


@topics.command("update")
@click.argument("topic", type=topic_name)
@click.option(
    "--partitions", type=click.IntRange(1, PARTITIONS_MAX), metavar="N",
    help="Have so many from now on, more than before.",
)  # fmt: skip
@topic_policy_options
@inherit_option
@json_option
@url_option
def update_topic(
    topic: str,
    partitions: int | None,
    inherited: Sequence[str],
    as_json: bool,
    url: str,
    **policies: Any,  # Any: the values of topic_policy_options
) -> None:
    """Change policies of TOPIC, or add partitions; it goes on meanwhile."""
    if partitions is None and is_empty(build_policies(policies, inherited)):
        raise click.UsageError("nothing to change: give a policy, --inherit or --partitions")

    async def change(admin: Administration) -> admin_replies.TopicDescribed:
        before = None
        if changes_failure(policies):
            before = (await admin.describe_topic(topic)).effective.failure
        patch = build_policies(policies, inherited, before)
        return await admin.update_topic(topic, patch, partitions=partitions)

    changed = ask(url, change)
    if as_json:
        print_json(to_json(changed))
    else:
        print_line(f"updated {topic}")
        print_facts(policy_facts(changed.policies, changed.effective))


@topics.command("describe")
@click.argument("topic", type=topic_name)
@json_option
@url_option
def describe_topic(topic: str, as_json: bool, url: str) -> None:
    """Show what TOPIC holds, what holds for it, who writes to it and who reads from it."""

    async def run() -> tuple[admin_replies.TopicDescribed, TopicDescribed | None, list[Line]]:
        async with danubius.connect(url) as client:
            found = await client.admin.describe_topic(topic)
            plain = None if found.partitions else await client.describe_topic(topic)
            lines = await client.admin.list_subscriptions(topic) if found.partitions else []
            return found, plain, lines

    found, plain, lines = run_async(run)
    if as_json:
        print_json(_description(found, plain, lines))
        return
    figures, retention = found.statistics, retention_of(found.effective)
    age = "no limit" if retention.age_ms is None else duration(retention.age_ms)
    size = "no limit" if retention.size_bytes is None else human_bytes(retention.size_bytes)
    facts: dict[str, Cell] = {
        "topic": found.topic,
        "dispatch": found.dispatch,
        "durability": _durability(found.dispatch, found.durability),
        "partitions": found.partitions,
        "offsets": f"from {figures.start_offset}, next {figures.end_offset}",
        "messages": human_count(figures.stored_messages),
        "stored": f"{human_bytes(figures.stored_bytes)}, ledgers: {figures.ledgers}",
        "retention": f"age {age}, size {size}",
        "producers": ", ".join(found.producers) or "none",
    }
    del facts["offsets" if found.partitions else "partitions"]
    own = {
        name: value
        for name, value in policy_facts(found.policies, found.effective).items()
        if not str(value).endswith("(inherited)") and not name.startswith("retention")
    }
    print_facts(facts | own)
    _print_subscriptions(plain, lines)


def _print_subscriptions(plain: TopicDescribed | None, lines: list[Line]) -> None:
    if plain is None:
        print_lines(lines, SUBSCRIPTION_COLUMNS, json=False, nothing="\nno subscriptions")
        return
    if not plain.subscriptions:
        print_text("\nno subscriptions")
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
            for each in plain.subscriptions
        ],
    )


def _description(
    found: admin_replies.TopicDescribed, plain: TopicDescribed | None, lines: list[Line]
) -> dict[str, object]:
    retention = retention_of(found.effective)
    subscriptions = plain.subscriptions if plain is not None else lines
    return {
        "topic": found.topic,
        "dispatch": found.dispatch,
        "durability": _durability(found.dispatch, found.durability),
        "start_offset": found.statistics.start_offset,
        "end_offset": found.statistics.end_offset,
        "stored_bytes": found.statistics.stored_bytes,
        "retention_age_ms": retention.age_ms,
        "retention_bytes": retention.size_bytes,
        "producers": found.producers,
        "subscriptions": [msgspec.structs.asdict(each) for each in subscriptions],
        "ledgers": found.statistics.ledgers,
        "partitions": found.partitions,
        "policies": found.policies,
        "effective": found.effective,
    }


@topics.command("stats")
@click.argument("topic", type=topic_name)
@json_option
@url_option
def measure_topic(topic: str, as_json: bool, url: str) -> None:
    """Show all figures of TOPIC; of a partitioned one, the sums."""
    print_figures(ask(url, lambda admin: admin.measure_topic(topic)), json=as_json)


_TOP: Final[dict[str, Callable[[TopicStatistics], Cell]]] = {
    "TOPIC": lambda t: t.topic,
    "PUBLISHED": lambda t: rate(t.publish_rate),
    "BYTES IN": lambda t: rate(t.publish_bytes_rate, is_bytes=True),
    "DELIVERED": lambda t: rate(t.delivery_rate),
    "BYTES OUT": lambda t: rate(t.delivery_bytes_rate, is_bytes=True),
    "STORED": lambda t: human_bytes(t.stored_bytes),
    "PRODUCERS": lambda t: t.producers,
    "CONSUMERS": lambda t: t.consumers,
}


@topics.command("top")
@click.option("--namespace", type=namespace_name, metavar="NAME", help="Only this namespace.")
@top_options
@json_option
@url_option
def top(namespace: str | None, as_json: bool, url: str, **how: Any) -> None:  # Any: top_options
    """Watch the busiest topics, of the first 200 by name; Ctrl-C ends it."""

    async def look(admin: Administration) -> list[TopicStatistics]:
        lines = await admin.list_topics(namespace, limit=MEASURED_MAX)
        return await measure_each(lines, lambda line: admin.measure_topic(line.topic))

    run_top(url, look, _TOP, lambda t: (t.publish_rate + t.delivery_rate, t.published_messages),
            json=as_json, **how)  # fmt: skip


@topics.command("delete")
@click.argument("topic", type=topic_name)
@yes_option
@json_option
@url_option
def delete_topic(topic: str, yes: bool, as_json: bool, url: str) -> None:
    """Delete TOPIC with its messages and subscriptions, after a question."""
    check_can_ask("topics delete", yes=yes)
    if not yes:
        found = ask(url, lambda admin: admin.describe_topic(topic))
        ask_to_lose(_lost(found), yes=yes)
    ask(url, lambda admin: admin.delete_topic(topic))
    print_done(f"deleted {topic}", {"topic": topic, "deleted": True}, json=as_json)


def _lost(found: admin_replies.TopicDescribed) -> str:
    figures = found.statistics
    names = ", ".join(found.subscriptions[:_NAMED_MAX])
    more = ", …" if len(found.subscriptions) > _NAMED_MAX else ""
    subscriptions = f" and its subscriptions {names}{more}" if names else ""
    held = f"{human_count(figures.stored_messages)} messages ({human_bytes(figures.stored_bytes)})"
    return f"{found.topic} with {held}{subscriptions} will be gone for good"


def _durability(dispatch: Dispatch, durability: Durability) -> str:
    return "none" if dispatch is Dispatch.NON_RELIABLE else str(durability)


def _as_facts(summary: TopicSummary) -> dict[str, object]:
    retention = retention_of(effective(summary.spec.layer()))
    return {
        "topic": summary.topic,
        "dispatch": summary.spec.dispatch,
        "durability": _durability(summary.spec.dispatch, summary.spec.durability),
        "start_offset": summary.start_offset,
        "end_offset": summary.end_offset,
        "stored_bytes": summary.stored_bytes,
        "retention_age_ms": retention.age_ms,
        "retention_bytes": retention.size_bytes,
        "producers": summary.producers,
        "subscriptions": summary.subscriptions,
    }
