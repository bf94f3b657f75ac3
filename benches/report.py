"""Figures with their bars, for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Figure(NamedTuple):
    """One line: what was measured, what it came to, and what it has to come to."""

    what: str
    measured: str
    against: str = "-"
    bar: str = "-"
    is_met: bool | None = None

    @property
    def verdict(self) -> str:
        return {None: "-", True: "met", False: "missed"}[self.is_met]


def rate(count_per_s: float, size: int) -> str:
    return f"{count_per_s / 1e6:.2f} M rows/s, {count_per_s * size / 1e6:,.0f} MB/s"


def share(what: str, measured: str, of: str, ratio: float, bar: float | None) -> Figure:
    """A part of something else, as a percentage."""
    if bar is None:
        return Figure(what, measured, f"{ratio:.0%} of {of}")
    return Figure(what, measured, f"{ratio:.0%} of {of}", f"{bar:.0%}", ratio >= bar)


def show(figure: Figure) -> None:
    verdict = "" if figure.is_met is None else f"bar {figure.bar}: {figure.verdict}"
    against = "" if figure.against == "-" else figure.against
    print(f"  {figure.what:44} {figure.measured:>28}  {against:34} {verdict}", flush=True)


def keep(document: Path, figures: list[Figure], target: str, given: str, using: list[str]) -> None:
    """Replace what stands between the two marks of a target of make."""
    command = f"make {target} BENCH_ARGS='{given}'" if given else f"make {target}"
    name = target.removeprefix("bench-")
    start, end = f"<!-- {name}: written by make {target} -->", f"<!-- end of {name} -->"
    text = document.read_text()
    before, found, rest = text.partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"{document} lacks {start} or {end}")
    versions = [f"{name} {version(name)}" for name in using]
    head = f"Command: `{command}`  \nVersions: {', '.join(versions)}"
    lines = ["| work | measured | against | bar | |", "|---|---:|---:|---:|---|"]
    lines += [
        f"| {each.what} | {each.measured} | {each.against} | {each.bar} | {each.verdict} |"
        for each in figures
    ]
    table = "\n".join(lines)
    document.write_text(f"{before}{start}\n\n{head}\n\n{table}\n\n{end}{after}")
