"""Every file of every kind of store, damaged in every way, at a start: docs/operations/damage.md says what happens.

The page is made by the same trials (`PYTHONPATH=src:tests python -m damage.table docs/operations/damage.md`), so a
row that has become another is a change of behaviour that somebody should look at.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from damage.damages import DAMAGES
from damage.mistakes import MISTAKES
from damage.rows import rows_of
from damage.table import PAGE, SECTIONS, UNCHANGED, make_mistake, make_row
from damage.templates import template
from damage.trial import attempt
from danubius.edge.grpc.data.consumer_book import DAMAGED_SUFFIX, FILE_NAME, ConsumerBook, Known
from danubius.model.subscription import SubscriptionType
from danubius.sim.disk import SimFiles
from danubius.sim.threads import SimThreads

if TYPE_CHECKING:
    from pathlib import Path

    from damage.damages import Target

ROWS = [
    pytest.param(kind, is_killed, target, id=f"{kind}-{is_killed}-{target.label}")
    for kind, is_killed in SECTIONS
    for target in rows_of(kind, is_killed=is_killed)
]
PAIRS = 60
CASES_MIN = 300


@pytest.mark.parametrize(("kind", "is_killed", "target"), ROWS)
def test_nothing_is_lost_unnamed_and_a_refused_start_changes_nothing(
    kind: str, is_killed: bool, target: Target
) -> None:
    row = make_row(kind, target, is_killed=is_killed)
    assert not row.violations, "\n".join(row.violations)
    assert row.line in PAGE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("label", MISTAKES)
def test_what_happens_to_several_files_at_once(label: str) -> None:
    row = make_mistake(label)
    assert not row.violations, "\n".join(row.violations)
    assert row.line in PAGE.read_text(encoding="utf-8").splitlines()


def test_two_damages_at_once_are_no_worse_than_named() -> None:
    dice = random.Random(7)
    history = template("local", is_killed=True)
    rows = rows_of("local", is_killed=True)
    for _ in range(PAIRS):
        image, said = history.image, list[str]()
        for target in dice.sample(rows, 2):
            name = dice.choice(list(DAMAGES))
            image = DAMAGES[name](history._replace(image=image), target)
            said.append(f"{target.label}: {name}")
        with asyncio.Runner() as runner:
            outcome = runner.run(attempt(history, image))
        assert not outcome.violations, (said, outcome.violations)


def test_the_page_has_hundreds_of_cases() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [cell.strip() for row in rows for cell in row.split("|")[2:-1]]
    words = {"all there", "named", "refused"}
    assert sum(cell in words for cell in cells) >= CASES_MIN
    assert UNCHANGED in cells


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_the_lock_file_holds_nothing_that_a_start_needs(damage: str, tmp_path: Path) -> None:
    """On a real disk, where a lock is a file."""
    history = template("local", is_killed=True)
    content = {"missing": None, "empty": b"", "cut in half": b"12"}.get(
        damage, b"4711 of another\n\xff"
    )
    image = history.image if content is None else history.image | {"data/lock": content}
    with asyncio.Runner() as runner:
        outcome = runner.run(attempt(history, image, tmp_path))
    assert (outcome.word, outcome.violations) == ("all there", [])


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_consumers_of_danube_clients_that_cannot_be_read_are_kept_aside(
    damage: str, tmp_path: Path
) -> None:
    files, loop = SimFiles(), asyncio.new_event_loop()
    lines = b"".join(
        b'{"number":%d,"topic":"/default/t","subscription":"s","consumer":"c","type":"shared"}\n'
        % one
        for one in (1, 2)
    )
    hurt = {"cut": lines[:-30], "garbage": lines[:90] + b"\xff\xfe" + lines[92:], "empty": b""}[
        damage
    ]
    files.lay_out({tmp_path / FILE_NAME: hurt})
    try:
        book = ConsumerBook(tmp_path, files, loop, SimThreads())
        book.open()
    finally:
        loop.close()
    if damage == "empty":
        assert not len(book)
        return
    assert book.find(1) == Known(1, "/default/t", "s", "c", SubscriptionType.SHARED)
    assert book.find(2) is None
    assert files.read_bytes(tmp_path / (FILE_NAME + DAMAGED_SUFFIX)) == hurt
