"""`danubius produce`: messages from arguments, a file or the lines of stdin.

Lines of stdin are sent as they arrive: whatever one read returns is one call of `send_many`, so a
person typing sees every line stored at once and a pipe is sent in large batches.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

import danubius
from danubius.cli.event_loop import run_async
from danubius.cli.options import (
    byte_count,
    json_option,
    milliseconds,
    name_and_value,
    point_in_time,
    producer_name,
    topic_name,
    url_option,
)
from danubius.cli.options import count as count_of
from danubius.cli.output import human_count, meter, print_json, print_line
from danubius.errors import MessageTooLarge
from danubius.model.limits import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from danubius.client.options import DispatchName

_CHUNK_MESSAGES = 10_000
_READ_BYTES = 1 << 20


class Sent(msgspec.Struct):
    """What `--json` prints when all is stored."""

    topic: str
    count: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    seconds: float = 0.0
    skipped: int = 0
    """Of what was given: stored before, under the same name."""

    def note(self, receipts: danubius.Receipts) -> None:
        """Partitions have offsets each of their own: then there is no first and no last."""
        if list(receipts.parts) != [self.topic]:
            return
        if self.first_offset is None:
            self.first_offset = receipts.first_offset
        self.last_offset = receipts.last_offset


class How(NamedTuple):
    """What all messages of a command have in common."""

    key: bytes | None
    attributes: dict[str, str]
    dispatch: DispatchName
    name: str | None
    resume: bool
    deliver_after_s: float | None
    deliver_at: datetime | None
    ttl_s: float | None
    chunk_bytes: int | None

    @property
    def is_delayed(self) -> bool:
        return self.deliver_after_s is not None or self.deliver_at is not None

    def check(self) -> None:
        """Refuse what does not go together."""
        if self.deliver_after_s is not None and self.deliver_at is not None:
            raise click.UsageError("give --deliver-after or --deliver-at, not both")
        if self.resume and self.name is None:
            raise click.UsageError("--resume needs --name: what is stored is known by the name")
        if self.resume and self.is_delayed:
            raise click.UsageError("--resume is for messages that are delivered at once")
        if self.dispatch != "reliable" and (self.resume or self.is_delayed or self.chunk_bytes):
            raise click.UsageError(
                "--non-reliable stores nothing, so it cannot resume, deliver later or send in pieces"
            )
        if self.resume and self.chunk_bytes is not None:
            raise click.UsageError("--resume counts messages, and --chunk-bytes makes more of them")


@click.command(
    epilog="""\b
Examples:
  danubius produce /default/orders -m hello -m world
  danubius produce /default/orders -m tick --count 1M
  danubius produce /default/orders --key customer-7 --attribute kind=invoice --file invoice.pdf
  danubius produce /default/reminders -m "call back" --deliver-after 15m
  danubius produce /default/prices -m 17.50 --ttl 5m
  danubius produce /default/films --file holiday.mp4 --chunk-bytes 4MiB
  danubius produce /default/imports --name loader-1 --resume < lines.txt
  tail -F app.log | danubius produce /default/logs
"""
)
@click.argument("topic", type=topic_name)
@click.option(
    "-m", "--message", "texts", multiple=True, metavar="TEXT", help="A message; repeatable."
)
@click.option(
    "--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The content of a file as one message.",
)  # fmt: skip
@click.option(
    "--count", type=count_of, default="1", metavar="N", help="Send what -m and --file give N times."
)
@click.option("--key", metavar="K", help="Key of every message (Key-Shared routes by it).")
@click.option(
    "--attribute", "attributes", type=name_and_value, multiple=True, metavar="NAME=VALUE",
    help="An attribute of every message; repeatable.",
)  # fmt: skip
@click.option("--non-reliable", is_flag=True, help="Hand to whoever listens; store nothing.")
@click.option(
    "--deliver-after", type=milliseconds, metavar="TIME",
    help="Store now, deliver this long from now: 250ms, 90 (seconds), 15m, 12h, 7d.",
)  # fmt: skip
@click.option(
    "--deliver-at", type=point_in_time, metavar="TIME",
    help="Store now, deliver then: 2026-01-31T12:00:00, UTC unless it says otherwise.",
)  # fmt: skip
@click.option(
    "--ttl", type=milliseconds, metavar="TIME",
    help="Do not deliver later than this long after it is published: 250ms, 90 (seconds), 15m.",
)  # fmt: skip
@click.option(
    "--chunk-bytes", type=byte_count, metavar="SIZE",
    help="Send messages that are larger in pieces of at most this size: 64KiB, 4MiB. Consumers get them whole.",
)  # fmt: skip
@click.option(
    "--name", type=producer_name, metavar="NAME",
    help="Be this producer: an older one of the name is ended.",
)  # fmt: skip
@click.option(
    "--resume", is_flag=True,
    help="Leave out as many messages as are stored under --name: a command that was killed is run again, and each "
    "message is stored once. Not for partitioned topics.",
)  # fmt: skip
@json_option
@url_option
def produce(
    topic: str,
    texts: tuple[str, ...],
    path: Path | None,
    count: int,
    key: str | None,
    attributes: tuple[tuple[str, str], ...],
    non_reliable: bool,
    deliver_after: int | None,
    deliver_at: datetime | None,
    ttl: int | None,
    chunk_bytes: int | None,
    name: str | None,
    resume: bool,
    as_json: bool,
    url: str,
) -> None:  # one parameter an option
    """Send messages to TOPIC and wait until they are stored.

    Without -m and --file, every line of stdin is a message.
    """
    how = How(
        os.fsencode(key) if key is not None else None,
        dict(attributes),
        "non-reliable" if non_reliable else "reliable",
        name,
        resume,
        deliver_after / 1000 if deliver_after is not None else None,
        deliver_at,
        ttl / 1000 if ttl is not None else None,
        chunk_bytes,
    )
    how.check()
    payloads = [os.fsencode(text) for text in texts]  # arguments need not be text
    if path is not None:
        payloads.append(path.read_bytes())
    if not payloads and count != 1:
        raise click.UsageError("--count needs -m or --file")
    if count < 1:
        raise click.UsageError("--count must be at least 1")
    total = len(payloads) * count if payloads else None
    source = _repeated(payloads, count) if payloads else _lines_of_stdin()
    sent = Sent(topic)
    run_async(_send, url, sent, source, total, how)
    if as_json:
        print_json(sent)
    else:
        print_line(_sentence(sent, how))


def _sentence(sent: Sent, how: How) -> str:
    what = f"{human_count(sent.count)} message{'' if sent.count == 1 else 's'} to {sent.topic}"
    if sent.skipped:
        what += f" ({human_count(sent.skipped)} were stored before)"
    if not sent.count or how.dispatch != "reliable":
        return f"sent {what}"
    if how.is_delayed:
        return f"scheduled {what} in {sent.seconds:.3f} s"
    if sent.first_offset is None:
        return f"stored {what}, in its partitions, in {sent.seconds:.3f} s"
    where = f"{sent.first_offset}"
    if sent.count > 1:
        where = f"{sent.first_offset} to {sent.last_offset}"
    return (
        f"stored {what} at offset{'' if sent.count == 1 else 's'} {where} in {sent.seconds:.3f} s"
    )


async def _send(
    url: str, sent: Sent, source: AsyncIterator[list[bytes]], total: int | None, how: How
) -> None:
    started = time.monotonic()
    async with (
        danubius.connect(url) as client,
        client.producer(
            sent.topic,
            name=how.name,
            dispatch=how.dispatch,
            resume=how.resume,
            chunk_bytes=how.chunk_bytes,
        ) as producer,
    ):
        stored = producer.next_sequence if how.resume else 0
        with meter("sending", total) as progress:
            async for payloads in source:
                known = min(len(payloads), stored - sent.skipped)
                sent.skipped += known
                progress.advance(known)
                payloads = payloads[known:]  # what is left of it
                if not payloads:
                    continue
                if how.chunk_bytes is not None:
                    await _send_each(producer, payloads, how, sent)
                else:
                    await _send_all(producer, payloads, how, sent)
                sent.count += len(payloads)
                progress.advance(len(payloads))
    sent.seconds = round(time.monotonic() - started, 6)


async def _send_all(
    producer: danubius.Producer, payloads: list[bytes], how: How, sent: Sent
) -> None:
    receipts = await producer.send_many(
        payloads,
        keys=[how.key] * len(payloads) if how.key is not None else None,
        attributes=[how.attributes] * len(payloads) if how.attributes else None,
        deliver_after=how.deliver_after_s,
        deliver_at=how.deliver_at,
        ttl=how.ttl_s,
    )
    if not how.is_delayed:
        sent.note(receipts)


async def _send_each(
    producer: danubius.Producer, payloads: list[bytes], how: How, sent: Sent
) -> None:
    """One after the other: some may be sent in pieces."""
    for payload in payloads:
        receipt = await producer.send(
            payload,
            key=how.key,
            attributes=how.attributes or None,
            deliver_after=how.deliver_after_s,
            deliver_at=how.deliver_at,
            ttl=how.ttl_s,
        )
        if not how.is_delayed:
            sent.note(danubius.Receipts(receipt.topic, [(receipt.offset, 1)]))


async def _repeated(payloads: list[bytes], count: int) -> AsyncIterator[list[bytes]]:
    step = max(1, _CHUNK_MESSAGES // len(payloads))
    for first in range(0, count, step):
        yield payloads * min(step, count - first)


async def _lines_of_stdin() -> AsyncIterator[list[bytes]]:
    rest = b""
    while data := await _read_stdin():
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > MESSAGE_BYTES_MAX:
            raise MessageTooLarge(
                f"a line of stdin is longer than a message may be: {MESSAGE_BYTES_MAX} bytes"
            )
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _read_stdin() -> bytes:
    """One read of stdin, on a thread that nobody waits for: Ctrl-C must not wait for the next line."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes] = loop.create_future()
    descriptor = sys.stdin.fileno()

    def read() -> None:
        try:
            answer = partial(_settle, future, os.read(descriptor, _READ_BYTES))
        except OSError as error:
            answer = partial(_settle, future, error)
        with suppress(RuntimeError):  # the loop is closed: we were stopped meanwhile
            loop.call_soon_threadsafe(answer)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return await future


def _settle(future: asyncio.Future[bytes], result: bytes | OSError) -> None:
    if future.done():
        return
    if isinstance(result, OSError):
        future.set_exception(result)
    else:
        future.set_result(result)
