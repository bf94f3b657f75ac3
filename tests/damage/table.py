"""The table of docs/operations/damage.md: made of trials, a row at a time, and read back to be compared.

`PYTHONPATH=src:tests python -m damage.table docs/operations/damage.md` writes it anew.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from damage.damages import DAMAGES
from damage.mistakes import MISTAKES
from damage.rows import rows_of
from damage.templates import template
from damage.trial import attempt

if TYPE_CHECKING:
    from damage.damages import Target
    from damage.trial import Outcome

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operations" / "damage.md"
UNCHANGED: Final = "-"
NOT_TOLD: Final = "lost, not told"
UNTOLD: Final = {("diskless", "`journal/`, the newest", "missing")}
"""Nothing in the world tells it: see the page."""
_TITLES: Final = {
    ("local", True): "Ledgers in the data directory, the broker was killed",
    ("local", False): "Ledgers in the data directory, the broker was stopped",
    ("tier", True): "Cold storage",
    ("object", True): "Ledgers in an object store",
    ("remote", True): "Ledgers on a storage server",
    ("diskless", True): "A broker without a disk",
}
SECTIONS: Final = tuple(_TITLES)
_INTRODUCTION: Final = """\
# What a start makes of damaged files

Every cell is a broker that was started on files to which this had happened, with known messages on several topics,
subscriptions, a committed and an open transaction, by `tests/damage`, which also writes this page. What every one of
them was checked for:

- **Nothing acknowledged is lost without being named**: by the sentence of a refusal, by the log, or by the error that a
  read gets.
- **A start that is refused changes no byte**, neither of the data directory nor of a store. With the good files put
  back everything is there.
- A start that succeeds has a higher epoch than any before, gives no offset a second time, and the next start finds the
  same.

| cell | means |
|---|---|
| all there | it starts, and everything that was acknowledged can be read |
| named | it starts; the log or the reads name what is lost, with its offsets, and everything else is there |
| lost, not told | the last object that a killed broker stored, gone from its store, is as if it had never been there |
| refused | it does not start, says why, and has touched nothing |
| - | such a file never changes, or is the same everywhere |

*Cut in half* is the first half of the file; *garbage inside* and *at the end* are 64 other bytes in its middle and in
place of its last ones; *behind it* are 1,000 more. Of a folder, all of its files are meant, and *empty* is a folder
without files, as where nothing is mounted.

If there is no copy to restore: [`danubius storage repair`](repair.md) says what would be given up, and then does it.
"""


class Row(NamedTuple):
    """One line of the table, and what was said."""

    line: str
    sentences: list[str]
    violations: list[str]


def make_row(kind: str, target: Target, *, is_killed: bool) -> Row:
    """Let everything happen to one kind of file."""
    history = template(kind, is_killed=is_killed)
    assert target.select(history.image), f"{kind}: there is no file for {target.label}"
    cells: list[str] = []
    sentences: list[str] = []
    violations: list[str] = []
    for name, damage in DAMAGES.items():
        image = damage(history, target)
        if image == history.image:
            cells.append(UNCHANGED)
            continue
        with asyncio.Runner() as runner:
            outcome = runner.run(attempt(history, image))
        if (kind, target.label, name) in UNTOLD:
            cells.append(NOT_TOLD)
            continue
        cells.append(outcome.word)
        sentences += _said(outcome)
        violations += [f"{kind}, {target.label}, {name}: {one}" for one in outcome.violations]
    return Row(f"| {target.label} | {' | '.join(cells)} |", sentences, violations)


def make_mistake(label: str) -> Row:
    """One of the things that happen to several files at once."""
    mistake = MISTAKES[label]
    history = template(mistake.kind, is_killed=mistake.is_killed)
    with asyncio.Runner() as runner:
        outcome = runner.run(attempt(history, mistake.make(history)))
    violations = [f"{label}: {one}" for one in outcome.violations]
    said = " ".join(_said(outcome)[:1])
    return Row(f"| {label} | {outcome.word} | {said} |", [], violations)


def _said(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(_impersonal(one) for one in outcome.sentences))


def _impersonal(sentence: str) -> str:
    """A sentence without what differs from one run to the next."""
    sentence = re.sub(r"grpc://127.0.0.1:\d+", "grpc://server", sentence)
    sentence = re.sub(r"memory://[a-z-]+", "s3://bucket", sentence)
    sentence = re.sub(r"broker-[0-9a-f]{12}", "broker-…", sentence)
    sentence = re.sub(r"(?<![A-Za-z])[0-9a-f]{8,}(?![A-Za-z])", "…", sentence)
    sentence = re.sub(r"\d[\d,]*", "N", sentence)
    return sentence.replace("|", "\\|")


def render() -> str:
    parts = [_INTRODUCTION]
    violations: list[str] = []
    for kind, is_killed in SECTIONS:
        targets = rows_of(kind, is_killed=is_killed)
        rows = [make_row(kind, target, is_killed=is_killed) for target in targets]
        violations += [one for row in rows for one in row.violations]
        said = sorted({sentence for row in rows for sentence in row.sentences})
        parts += [
            f"## {_TITLES[kind, is_killed]}\n",
            f"| file | {' | '.join(DAMAGES)} |",
            f"|---|{'---|' * len(DAMAGES)}",
            *(row.line for row in rows),
            "\nIt says:\n",
            *(f"- {sentence}" for sentence in said),
            "",
        ]
    mistakes = [make_mistake(label) for label in MISTAKES]
    violations += [one for row in mistakes for one in row.violations]
    parts += ["## Several at once\n", "| what happened | then | it says |", "|---|---|---|"]
    parts += [row.line for row in mistakes]
    for one in violations:
        sys.stderr.write(f"{one}\n")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
