"""`danubius topics ledgers` and `danubius topics offload`: where messages lie, and moving them to cold storage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from danubius.cli.commands.administering import ask, moment, print_lines, to_json
from danubius.cli.options import json_option, milliseconds, topic_name, url_option
from danubius.cli.output import human_bytes, human_count, meter, print_json, print_line
from danubius.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.cli.output import Cell
    from danubius.client.administration import Administration
    from danubius.model.admin_replies import LedgerSummary, TopicOffloading

POLL_S: Final = 0.5

_COLUMNS: Final[dict[str, Callable[[LedgerSummary], Cell]]] = {
    "LEDGER": lambda line: str(line.ledger_id),
    "OFFSETS": lambda line: f"{line.base_offset} to {line.end_offset - 1}",
    "MESSAGES": lambda line: human_count(line.end_offset - line.base_offset),
    "SIZE": lambda line: human_bytes(line.bytes),
    "FIRST": lambda line: moment(line.first_time_us // 1000),
    "LAST": lambda line: moment(line.last_time_us // 1000),
    "STATE": lambda line: "sealed" if line.is_sealed else "open",
    "TIER": lambda line: line.tier,
    "OBJECT": lambda line: line.object or "-",
}
_TOPIC: Final[dict[str, Callable[[LedgerSummary], Cell]]] = {"TOPIC": lambda line: line.topic}


@click.command("ledgers")
@click.argument("topic", type=topic_name)
@json_option
@url_option
def list_ledgers(topic: str, as_json: bool, url: str) -> None:
    """List the ledgers of TOPIC, oldest first, and where they lie.

    TIER is local (on the broker's disk), both (in cold storage too) or cold (in cold storage alone).
    """
    found = ask(url, lambda admin: admin.list_ledgers(topic))
    is_partitioned = any(line.topic != topic for line in found)
    columns = _TOPIC | _COLUMNS if is_partitioned else _COLUMNS
    print_lines(found, columns, json=as_json, nothing=f"{topic} holds nothing")


@click.command("offload")
@click.argument("topic", type=topic_name)
@click.option("--no-wait", is_flag=True, help="Begin, and do not wait for the end.")
@click.option(
    "--timeout", "timeout_ms", type=milliseconds, default="10m", show_default=True, metavar="TIME",
    help="Wait no longer than this; it goes on all the same.",
)  # fmt: skip
@json_option
@url_option
def offload_topic(topic: str, no_wait: bool, timeout_ms: int, as_json: bool, url: str) -> None:
    """Move all that TOPIC holds now to cold storage, whatever its policies say.

    How long it stays on the broker's disk too is said by --local-age and --local-bytes of the topic.
    """
    reply = ask(url, lambda admin: _offload(admin, topic, 0 if no_wait else timeout_ms))
    if as_json:
        print_json({"topic": topic} | to_json(reply) | {"is_done": reply.is_done})
    elif reply.is_done:
        size = human_bytes(reply.bytes)
        print_line(f"{topic}: {human_count(reply.ledgers)} ledgers, {size}, are in cold storage")
    else:
        told = f"; it does not go on, because {reply.problem}" if reply.problem else ""
        stored = f"{reply.stored_ledgers} of {reply.ledgers} ledgers"
        print_line(f"{topic}: {stored} are in cold storage so far{told}")
    if not reply.is_done and not no_wait:
        raise DeadlineExceeded(
            f"not all of {topic} is in cold storage after {timeout_ms} ms; the broker goes on with it"
            + (f", but {reply.problem}" if reply.problem else "")
        )


async def _offload(admin: Administration, topic: str, timeout_ms: int) -> TopicOffloading:
    reply = await admin.offload_topic(topic)
    if reply.is_done or not timeout_ms:
        return reply
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    with meter("moving", reply.bytes) as progress:
        shown, problem = 0, ""
        while not reply.is_done and asyncio.get_running_loop().time() < deadline:
            progress.advance(reply.stored_bytes - shown)
            shown = reply.stored_bytes
            if reply.problem and not problem:
                # At once, not when patience is at its end: it may be for this very person to mend.
                print_line(f"it waits, because {reply.problem}", err=True)
            problem = reply.problem
            await asyncio.sleep(POLL_S)
            reply = await admin.offload_topic(topic, reply.until)
    return reply
