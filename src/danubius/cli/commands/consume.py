"""`danubius consume`: print and acknowledge the messages of a subscription."""

from __future__ import annotations

import sys

import click
import msgspec

import danubius
from danubius.cli.commands.message_lines import raw_option, renderer
from danubius.cli.event_loop import run_async
from danubius.cli.options import count as count_of
from danubius.cli.options import (
    json_option,
    start_position,
    subscription_name,
    topic_name,
    url_option,
)
from danubius.cli.output import human_count, note
from danubius.client.options import Start, SubscriptionTypeName
from danubius.errors import DeadlineExceeded
from danubius.model.subscription import SubscriptionType

_BATCH_MESSAGES_MAX = 10_000


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for."""

    url: str
    topic: str
    subscription: str
    type: SubscriptionTypeName
    start: Start
    count: int | None
    timeout_s: float | None
    as_json: bool
    is_raw: bool
    key_filters: tuple[str, ...]


@click.command(
    epilog="""\b
Examples:
  danubius consume /default/orders -s billing
  danubius consume /default/orders -s audit --from 2026-01-31T12:00:00 --json
  danubius consume /default/orders -s workers --type shared --count 100
  danubius consume /default/orders -s regions --type key-shared --key-filter 'eu-*' --key-filter 'uk-*'
"""
)
@click.argument("topic", type=topic_name)
@click.option(
    "-s", "--subscription", type=subscription_name, required=True, metavar="NAME",
    help="The subscription; it remembers what was acknowledged.",
)  # fmt: skip
@click.option(
    "--type", "kind", type=click.Choice([kind.value for kind in SubscriptionType]),
    default="exclusive", show_default=True, help="How its consumers share the messages.",
)  # fmt: skip
@click.option(
    "--from", "start", type=start_position, default="earliest", show_default=True,
    metavar="earliest|latest|OFFSET|ISO-TIME", help="Where a new subscription starts.",
)  # fmt: skip
@click.option(
    "--key-filter", "key_filters", multiple=True, metavar="PATTERN",
    help="With --type key-shared: take only keys that match; * stands for any characters, ? for one. May be repeated.",
)  # fmt: skip
@click.option("--count", type=count_of, metavar="N", help="Stop after N messages.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="Stop when nothing came for this long; a failure if --count was not reached.",
)  # fmt: skip
@raw_option
@json_option
@url_option
def consume(
    topic: str,
    subscription: str,
    kind: SubscriptionTypeName,
    start: Start,
    key_filters: tuple[str, ...],
    count: int | None,
    timeout_s: float | None,
    raw: bool,
    as_json: bool,
    url: str,
) -> None:  # one parameter an option
    """Print the messages of TOPIC, one a line, and acknowledge them.

    Runs until --count, --timeout or Ctrl-C. With --json every line has offset, publish_time, key,
    attributes and payload; bytes that are no UTF-8 text come as payload_base64 and key_base64.

    The subscription stays, and what it has not acknowledged is kept for it, until it is deleted. To look at messages
    and leave nothing behind, use `danubius topics read`.
    """
    if count is not None and count < 1:
        raise click.UsageError("--count must be at least 1")
    wanted = Wanted(
        url=url, topic=topic, subscription=subscription, type=kind, start=start, count=count,
        timeout_s=timeout_s, as_json=as_json, is_raw=raw, key_filters=key_filters,
    )  # fmt: skip
    try:
        run_async(_consume, wanted)
    except KeyboardInterrupt:
        if count is not None:
            raise


async def _consume(wanted: Wanted) -> None:
    remaining = wanted.count if wanted.count is not None else sys.maxsize
    received = 0
    render = renderer(as_json=wanted.as_json, raw=wanted.is_raw)
    async with (
        danubius.connect(wanted.url) as client,
        client.consumer(
            wanted.topic,
            subscription=wanted.subscription,
            type=wanted.type,
            start=wanted.start,
            # A consumer that wants few messages must not hold back many from its peers.
            prefetch_messages=min(remaining, 100_000),
            key_filters=wanted.key_filters,
        ) as consumer,
    ):
        note(f"consuming {wanted.topic} as {wanted.subscription}; Ctrl-C stops")
        while remaining:
            try:
                batch = await consumer.receive_batch(
                    timeout=wanted.timeout_s, max_messages=min(remaining, _BATCH_MESSAGES_MAX)
                )
            except DeadlineExceeded:
                if wanted.count is None:
                    break
                raise DeadlineExceeded(
                    f"{received} of {wanted.count} messages came from {wanted.topic}, "
                    f"then none for {wanted.timeout_s} s"
                ) from None
            sys.stdout.buffer.write(b"".join(map(render, batch.messages())))
            sys.stdout.buffer.flush()
            # Printed first, acknowledged after: a broken pipe loses nothing.
            await consumer.ack(batch)
            received += len(batch)
            remaining -= len(batch)
    kept = f"subscription {wanted.subscription} stays, `danubius subscriptions delete` ends it"
    note(f"{human_count(received)} messages; {kept}")
