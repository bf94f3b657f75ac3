"""`danubius storage`: whether what is stored is sound, and what to do if it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from danubius.cli.commands.administering import ask, to_json
from danubius.cli.commands.storage_repair import repair
from danubius.cli.options import json_option, topic_name, url_option
from danubius.cli.output import human_bytes, human_count, meter, print_json, print_line, print_table

if TYPE_CHECKING:
    from danubius.client.administration import Administration
    from danubius.model.admin_replies import LedgerChecked


@click.group(
    epilog="""\b
Examples:
  danubius storage check /default/orders
  danubius storage check /default/orders --json
  danubius storage repair --data-dir ./danubius-data --dry-run
"""
)
def storage() -> None:
    """Check what is stored, and repair it."""


storage.add_command(repair)


@storage.command("check")
@click.argument("topic", type=topic_name)
@json_option
@url_option
def check(topic: str, as_json: bool, url: str) -> int:
    """Read everything that TOPIC holds, on disk and in cold storage, and prove every checksum.

    Ends with 1 if anything is damaged. Ledgers that no state explains, of whichever topic, are named below. The broker
    reads, one ledger after the other, and serves others meanwhile.
    """
    checked, unexplained = ask(url, lambda admin: _check(admin, topic))
    if as_json:
        for one in checked:
            print_json(to_json(one))
    else:
        _print(topic, checked)
        for place in unexplained:
            print_line(f"of any topic, and not part of what was checked: {place}")
    return 1 if any(place.damage for one in checked for place in one.places) else 0


async def _check(admin: Administration, topic: str) -> tuple[list[LedgerChecked], list[str]]:
    lines = await admin.list_ledgers(topic)
    checked: list[LedgerChecked] = []
    with meter("checking", sum(line.bytes for line in lines)) as progress:
        for line in lines:
            checked.append(await admin.check_ledger(line.topic, line.ledger_id))
            progress.advance(line.bytes)
    return checked, (await admin.describe_broker()).unexplained


def _print(topic: str, checked: list[LedgerChecked]) -> None:
    places = [(one, place) for one in checked for place in one.places]
    for tier in ("local", "cold"):
        sizes = [place.bytes for _, place in places if place.tier == tier]
        if sizes:
            print_line(f"{tier}: {human_count(len(sizes))} ledgers, {human_bytes(sum(sizes))} read")
    damaged = [(one, place) for one, place in places if place.damage]
    if not damaged:
        print_line(f"{topic} is sound")
        return
    print_table(
        ("TOPIC", "LEDGER", "TIER", "OFFSETS", "DAMAGE"),
        [
            (
                one.topic,
                str(one.ledger_id),
                place.tier,
                f"{place.first_offset} to {place.end_offset - 1}"
                if place.end_offset
                else "unknown",
                place.damage,
            )
            for one, place in damaged
        ],
    )
