"""Rows of a comparison, as a table for the terminal and as Markdown for docs/benchmarks.md."""

from __future__ import annotations

import msgspec

from danubius.cli.bench.fairness import ratio
from danubius.cli.bench.report import label
from danubius.cli.bench.work import Measurement, Work
from danubius.cli.output import print_table

_HEADINGS = {
    ("danubius", "synced"): "Danubius synced",
    ("redis", "synced"): "Redis fsync always",
    ("nats", "synced"): "NATS sync always",
    ("danubius", "written"): "Danubius written",
    ("redis", "written"): "Redis as it comes",
    ("nats", "written"): "NATS as it comes",
    ("rabbitmq", "written"): "RabbitMQ Streams as they come",
}
"""What a system with a durability is called, in the order of the columns."""


class Row(msgspec.Struct, frozen=True):
    """One kind of work and what every side made of it."""

    work: Work
    cells: dict[tuple[str, str], Measurement]
    note: str = ""
    """More on what Danubius did."""


class Table(msgspec.Struct, frozen=True):
    """What docs/benchmarks.md shows."""

    rows: list[Row]
    target: str
    """Of make; its table stands between two marks that name it."""
    arguments: str
    systems: list[str]
    versions: dict[str, str]

    @property
    def command(self) -> str:
        return f"make {self.target}" + (f" BENCH_ARGS='{self.arguments}'" if self.arguments else "")

    @property
    def sides(self) -> list[tuple[str, str]]:
        return [side for side in _HEADINGS if side[0] in self.systems]

    @property
    def peers(self) -> list[tuple[str, str]]:
        """Those that Danubius is compared with: as they come, against synced."""
        return [side for side in self.sides if side[0] != "danubius" and side[1] == "written"]

    @property
    def headings(self) -> list[str]:
        names = [_HEADINGS[side] for side in self.sides]
        return ["work", *names, *(f"synced ÷ {_HEADINGS[side]}" for side in self.peers)]


def print_rows(table: Table) -> None:
    headings = [heading.upper() for heading in table.headings]
    print_table(headings, [_texts(table, row) for row in table.rows])


def markdown(document: str, table: Table) -> str:
    """The document with the table between its two marks replaced."""
    start, end = f"<!-- {table.target}: written by make -->", f"<!-- end of {table.target} -->"
    before, found, rest = document.partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"docs/benchmarks.md lacks {start} or {end}")
    return f"{before}{start}\n\n{_content(table)}\n{end}{after}"


def _content(table: Table) -> str:
    lines = [
        f"Command: `{table.command}`  ",
        "Versions: " + ", ".join(f"{name} {number}" for name, number in table.versions.items()),
        "",
        "| " + " | ".join(table.headings) + " |",
        "|---" + "|---:" * (len(table.headings) - 1) + "|",
    ]
    lines += ["| " + " | ".join(_texts(table, row)) + " |" for row in table.rows]
    lines += [""]
    lines += [
        "| Danubius synced | CPU s broker / producer / consumers | broker memory, peak |",
        "|---|---:|---:|",
    ]
    lines += [_resources(row) for row in table.rows if ("danubius", "synced") in row.cells]
    return "\n".join(lines) + "\n"


def _texts(table: Table, row: Row) -> list[str]:
    cells = [_cell(row.cells.get(side)) for side in table.sides]
    if row.note:
        cells[0] += f" ({row.note})"
    return [_name(row), *cells, *(_ratio(row, side) for side in table.peers)]


def _name(row: Row) -> str:
    any_cell = next(iter(row.cells.values()), None)
    kind = label(any_cell) if any_cell else row.work.kind
    size = f"{row.work.size} B"
    backlog = row.cells.get(("danubius", "synced"))
    if row.work.kind == "drain" and backlog is not None:
        kind = f"drain {backlog.count * backlog.size / 1e9:.1f} GB"
    return f"{kind}, {size}"


def _cell(measured: Measurement | None) -> str:
    if measured is None:
        return "-"
    doubt = "" if measured.is_exact else " (not exact)"
    if measured.latency is not None and measured.latency_alone is not None:
        alone, beside = measured.latency_alone, measured.latency
        return (
            f"{beside.p50:.2f} / {beside.p99:.2f} ms, alone {alone.p50:.2f} / {alone.p99:.2f} ms: "
            f"{ratio(measured):.1f} x{doubt}"
        )
    if measured.latency is not None:
        return f"{measured.latency.p50:.2f} / {measured.latency.p99:.2f} ms{doubt}"
    if measured.size >= 1000:
        return f"{measured.messages_per_s:,.0f}/s, {measured.megabytes_per_s:.0f} MB/s{doubt}"
    return f"{measured.messages_per_s:,.0f}/s{doubt}"


def _ratio(row: Row, peer: tuple[str, str]) -> str:
    ours, theirs = row.cells.get(("danubius", "synced")), row.cells.get(peer)
    if ours is None or theirs is None or ours.latency is not None:
        return "-"
    return f"{ours.messages_per_s / theirs.messages_per_s:.1f}"


def _resources(row: Row) -> str:
    cell = row.cells["danubius", "synced"]
    memory = "-" if cell.rss_peak_mb is None else f"{cell.rss_peak_mb:.0f} MB"
    if cell.rss_per_topic_kb is not None:
        memory += f", {cell.rss_per_topic_kb:.1f} KB a topic"
    cpu = f"{cell.cpu_broker_s} / {cell.cpu_producer_s} / {cell.cpu_consumer_s}"
    return f"| {_name(row)} | {cpu} | {memory} |"
