"""`danubius subscriptions seek | skip | peek | clear | events`: where a subscription stands, and how it came there."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import click

import danubius
from danubius.cli.commands.administering import ask, moment, print_done, to_json
from danubius.cli.commands.message_lines import raw_option, renderer
from danubius.cli.event_loop import run_async
from danubius.cli.options import (
    F,
    count,
    json_option,
    start_position,
    subscription_name,
    topic_name,
    url_option,
)
from danubius.cli.output import human_count, print_json, print_line
from danubius.model.admin import LIMIT_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from danubius.client.client import Client
    from danubius.client.options import Start
    from danubius.model.admin_replies import SubscriptionEvent

FOLLOW_S: Final = 1.0
"""Between two looks for new events."""


def of_subscription(command: F) -> F:
    return click.argument("topic", type=topic_name)(
        click.argument("subscription", type=subscription_name)(command)
    )


def print_counted(done: str, topic: str, subscription: str, messages: int, *, json: bool) -> None:
    """How many messages a command was about."""
    facts: dict[str, object] = {"topic": topic, "subscription": subscription, "messages": messages}
    noun = "message" if messages == 1 else "messages"
    what = f"{done} {human_count(messages)} {noun} of subscription {subscription} of {topic}"
    print_done(what, facts, json=json)


@click.command()
@of_subscription
@click.option(
    "--to", type=start_position, required=True, metavar="POSITION",
    help="earliest, latest, an offset, or a time (2026-01-31T12:00:00).",
)  # fmt: skip
@json_option
@url_option
def seek(topic: str, subscription: str, to: Start, as_json: bool, url: str) -> None:
    """Let SUBSCRIPTION go on from another position, back or forward; its consumers follow."""
    for line in ask(url, lambda admin: admin.seek(topic, subscription, to)):
        what = f"{subscription} goes on at offset {line.offset} of {line.topic}"
        print_done(what, to_json(line), json=as_json)


@click.command()
@of_subscription
@click.argument("messages", metavar="COUNT", type=count)
@json_option
@url_option
def skip(topic: str, subscription: str, messages: int, as_json: bool, url: str) -> None:
    """Acknowledge the first COUNT messages that are not acknowledged."""
    skipped = ask(url, lambda admin: admin.skip(topic, subscription, messages))
    print_counted("skipped", topic, subscription, skipped, json=as_json)


@click.command()
@of_subscription
@json_option
@url_option
def clear(topic: str, subscription: str, as_json: bool, url: str) -> None:
    """Acknowledge everything up to now."""
    cleared = ask(url, lambda admin: admin.clear_backlog(topic, subscription))
    print_counted("cleared", topic, subscription, cleared, json=as_json)


@click.command()
@of_subscription
@click.option(
    "--count", "limit", type=click.IntRange(1, LIMIT_MAX), default=1, show_default=True,
    metavar="N", help="So many messages at the most.",
)  # fmt: skip
@raw_option
@json_option
@url_option
def peek(topic: str, subscription: str, limit: int, raw: bool, as_json: bool, url: str) -> None:
    """Show the first messages that are not acknowledged; nothing changes."""
    render = renderer(as_json=as_json, raw=raw)

    async def run() -> int:
        shown = 0
        async with danubius.connect(url) as client:
            async for message in _peeked(client, topic, subscription, limit):
                sys.stdout.buffer.write(render(message))
                shown += 1
        sys.stdout.buffer.flush()
        return shown

    if not run_async(run) and not as_json:
        print_line(f"everything of {subscription} is acknowledged")


async def _peeked(
    client: Client, topic: str, subscription: str, limit: int
) -> AsyncIterator[danubius.Message]:
    for found in await client.admin.peek_ranges(topic, subscription, limit):
        for first, end in found.ranges:
            async with client.reader(found.topic, start=first, stop_at_end=True) as reader:
                async for message in reader:
                    if message.offset >= end:
                        break
                    yield message


@click.command()
@of_subscription
@click.option(
    "--follow", "-f", is_flag=True, help="Go on with what happens from now; Ctrl-C ends it."
)
@json_option
@url_option
def events(topic: str, subscription: str, follow: bool, as_json: bool, url: str) -> None:
    """Show what happened to SUBSCRIPTION, the oldest first: at most the last 128 events."""

    async def run() -> None:
        after, is_first = 0, True
        async with danubius.connect(url) as client:
            while is_first or follow:
                if not is_first:
                    await asyncio.sleep(FOLLOW_S)
                found = await client.admin.list_events(
                    topic, subscription, after=after, limit=LIMIT_MAX
                )
                for event in found.events:
                    _print_event(event, json=as_json)
                sys.stdout.flush()
                after, is_first = max(after, found.next), False

    run_async(run)


def _print_event(event: SubscriptionEvent, *, json: bool) -> None:
    if json:
        print_json(to_json(event))
        return
    times = f" ({event.count} times)" if event.count > 1 else ""
    noun = "message" if event.messages == 1 else "messages"
    about = f"{human_count(event.messages)} {noun}" if event.messages else ""
    words = " ".join(word for word in (about, event.who, event.detail) if word)
    print_line(f"{moment(event.time_ms)}  {event.kind:<14}  {words}{times}".rstrip())


COMMANDS: Final = (seek, skip, peek, clear, events)
