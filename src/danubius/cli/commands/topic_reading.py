"""`danubius topics read`: look at the messages of a topic, and leave nothing behind."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING

import click

import danubius
from danubius.cli.commands.message_lines import raw_option, renderer
from danubius.cli.event_loop import run_async
from danubius.cli.options import count as count_of
from danubius.cli.options import json_option, start_position, topic_name, url_option
from danubius.cli.output import human_count, note

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.client.options import Start


@click.command(
    "read",
    epilog="""\b
Examples:
  danubius topics read /default/orders
  danubius topics read /default/orders --from 2026-01-31T12:00:00 --count 10 --json
  danubius topics read /default/orders --from latest --follow
""",
)
@click.argument("topic", type=topic_name)
@click.option(
    "--from", "start", type=start_position, default="earliest", show_default=True,
    metavar="earliest|latest|OFFSET|ISO-TIME", help="Where to begin.",
)  # fmt: skip
@click.option("--count", type=count_of, metavar="N", help="Stop after N messages.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is published; Ctrl-C ends it.")
@raw_option
@json_option
@url_option
def read_topic(
    topic: str, start: Start, count: int | None, follow: bool, raw: bool, as_json: bool, url: str
) -> None:
    """Print the messages of TOPIC, one a line, up to the last one there is.

    Nothing is acknowledged and no subscription is made, so nothing is kept back because of it, and other readers see
    the same messages. For work that is shared or goes on where it ended, use `danubius consume`.
    """
    if count is not None and count < 1:
        raise click.UsageError("--count must be at least 1")
    render = renderer(as_json=as_json, raw=raw)
    most = sys.maxsize if count is None else count
    try:
        run_async(_read, url, topic, start, most, render, follow=follow)
    except KeyboardInterrupt:
        if not follow:
            raise


async def _read(
    url: str,
    topic: str,
    start: Start,
    most: int,
    render: Callable[[danubius.Message], bytes],
    *,
    follow: bool,
) -> None:
    left = most
    async with (
        danubius.connect(url) as client,
        client.reader(topic, start=start, stop_at_end=not follow) as reader,
    ):
        while left and (batch := await reader.read_batch()) is not None:
            lines = [render(message) for message in islice(batch.messages(), left)]
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()
            left -= len(lines)
    note(f"{human_count(most - left)} messages")
