"""`danubius storage repair`: a data directory whose journal is damaged, without a copy to restore it from."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from danubius.cli.output import human_bytes, human_count, print_json, print_line, print_text
from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from danubius.app.repair import Diagnosis


@click.command("repair")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    required=True,
    help="Of a broker that is stopped.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be given up, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Say it as one JSON object.")
def repair(data_dir: Path, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Make a data directory start again whose journal is damaged or whose snapshots are gone, and say what that costs.

    A copy is better: use this when there is none. Every record that can be read is kept; what is given up is named
    before anything is changed, and the files as they were stay in quarantine/. Ends with 1 if there is something to
    repair and --dry-run was given.
    """
    from danubius.app.repair import JournalRepair
    from danubius.runtime.files import LocalFiles

    files = LocalFiles()
    if not files.exists(data_dir / "danubius.json"):
        raise InvalidArgument(
            f"{data_dir} is no data directory: there is no danubius.json; name one with --data-dir"
        )
    lock = files.lock(data_dir / "lock")
    try:
        work = JournalRepair(data_dir, files)
        found = work.diagnose()
        report = "\n".join(describe(found)) + "\n"
        if as_json:
            print_json(facts_of(found))
        else:
            print_text(report, nl=False)
        if found.is_sound or dry_run:
            return 0 if found.is_sound else 1
        if not yes:
            click.confirm("Give this up, and repair?", abort=True, err=True)
        kept = work.mend(found, f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}", report)
    finally:
        lock.release()
    print_line(f"repaired; the files as they were, and this report, are in {kept}", err=as_json)
    return 0


def describe(found: Diagnosis) -> list[str]:
    """In words; the first line says whether there is anything to repair."""
    if found.is_sound:
        return ["the journal is sound from the newest snapshot on: there is nothing to repair"]
    plan = found.plan
    lines: list[str] = []
    if found.misses_snapshots:
        lines.append(
            "the snapshots are missing, and the journal goes back to the first record: a start can do without them, "
            "once danubius.json says so"
        )
    if plan.gaps or found.headless or found.needless:
        lines += _journal_damage(found)
    return lines + _given_up(found)


def _journal_damage(found: Diagnosis) -> list[str]:
    plan = found.plan
    lines = [
        (
            f"the journal cannot be read at {human_count(len(plan.gaps))} places that are needed, "
            f"{human_bytes(plan.lost_bytes)} in all; every other record is sound, and stays:"
        )
    ]
    lines += [
        f"  {gap.file.sequence:010d}.journal  positions {gap.first} to {gap.end}  {gap.reason}"
        for gap in plan.gaps
    ]
    lines += [
        f"  {header.sequence:010d}.journal  its header is missing, and is written again"
        for header in found.headless
    ]
    lines += [
        f"  {gap.file.sequence:010d}.journal  positions {gap.first} to {gap.end}  the newest snapshot has what was here"
        for gap in found.needless
    ]
    return lines


def _given_up(found: Diagnosis) -> list[str]:
    plan = found.plan
    if not plan.gaps:
        return ["nothing is given up"]
    lines = ["given up:"]
    lines += [
        f"  {lost.topic}: messages {lost.first} to {lost.end - 1} ({human_count(lost.end - lost.first)}); "
        "reads of them say so, and their offsets are not given again"
        for lost in plan.messages
    ]
    lines += [
        f"  {human_count(count)} messages of a topic that was created there, number {number}: its name is lost with it"
        for number, count in plan.nameless.items()
    ]
    if plan.orphans:
        lines.append(
            f"  {human_count(plan.orphans)} records with acknowledgements of subscriptions that were created there"
        )
    lines += [
        f"  {lost.topic}: sequences {lost.first} to {lost.end - 1} of producer {lost.producer}; if it sends them again "
        "they are refused as out of order, and not stored a second time"
        for lost in plan.sequences
    ]
    lines.append(
        "  whatever else was journaled there, of which nothing is left: topics, subscriptions and settings that were "
        "made, changed or deleted; acknowledgements (those messages are delivered again); commits of transactions"
    )
    lines.append(
        f"  what the journal held behind position {plan.end}, if it ever held more: a file that is gone from its end, "
        "or was cut short, leaves no trace of it"
    )
    if plan.doubtful:
        lines.append(
            "  nothing tells of these topics behind the last of these places, so their last messages may be among what "
            "is lost; then their offsets are given again, and a producer that repeats one of them stores it again:"
        )
        lines += [
            f"    {topic}: the next message gets offset {offset}" for topic, offset in plan.doubtful
        ]
    return lines


def facts_of(found: Diagnosis) -> dict[str, object]:
    """For programs."""
    plan = found.plan
    return {
        "sound": found.is_sound,
        "misses_snapshots": found.misses_snapshots,
        "gaps": [
            {
                "file": f"{gap.file.sequence:010d}.journal",
                "first": gap.first,
                "end": gap.end,
                "reason": gap.reason,
            }
            for gap in plan.gaps
        ],
        "headers_missing": [f"{header.sequence:010d}.journal" for header in found.headless],
        "messages": [lost._asdict() for lost in plan.messages],
        "sequences": [lost._asdict() for lost in plan.sequences],
        "nameless_topics": plan.nameless,
        "orphaned_acknowledgements": plan.orphans,
        "end": plan.end,
        "doubtful": [{"topic": topic, "next_offset": offset} for topic, offset in plan.doubtful],
    }
