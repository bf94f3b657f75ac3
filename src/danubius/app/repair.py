"""A data directory with a damaged journal or without snapshots, looked over and mended while no broker has it.

Read as a start reads it: the newest whole snapshot, then the journal from there on. Nothing is changed by looking. A
journal that reaches back to the first record needs no snapshot: the directory is told that it never had one.
Mending keeps every file that it changes as it was, in `quarantine/<moment>/`, before anything is written; each file is
replaced as a whole, so that a repair which was interrupted is begun again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danubius.broker.data_directory import JOURNAL, SNAPSHOT, encode_identity, read_identity
from danubius.errors import DataDirectoryDamaged, InvalidArgument
from danubius.shard.recovery.repair_plan import Plan, Planner, filler
from danubius.shard.state.snapshot import BrokerSnapshot, decode_snapshot
from danubius.wal.core.format import FILE_HEADER_BYTES, FileHeader, pack_file_header, parse_mark
from danubius.wal.core.recovery import identify, plan_spans
from danubius.wal.core.salvage import Gap, derive_header, salvage
from danubius.wal.journal import JournalRecord
from danubius.wal.segments import MARK_NAME
from danubius.wal.snapshot import SnapshotStore

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.runtime.files import Files
    from danubius.wal.core.recovery import Span
    from danubius.wal.snapshot import Snapshot

QUARANTINE: Final = "quarantine"
REPORT: Final = "given-up.txt"
_NAME: Final = re.compile(r"(\d{10})\.journal\Z")
_LEAST_BYTES: Final = 64
"""A record that says nothing, where something must be that comes up to a snapshot."""


class Diagnosis(NamedTuple):
    """What was found."""

    plan: Plan
    headless: list[FileHeader]
    """Files that have lost both copies of their header, and what it was."""
    needless: list[Gap]
    """Gaps in what the snapshot has already: nothing is lost by them, but a start would stumble over them."""
    misses_snapshots: bool = False
    """There were some, and are none; the journal goes back to the first record."""

    @property
    def is_sound(self) -> bool:
        return not (self.plan.gaps or self.headless or self.needless or self.misses_snapshots)


class JournalRepair:
    """One repair: made, `diagnose`, and perhaps `mend`. The caller holds the directory's lock."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._path = directory
        self._files = files
        self._journal = directory / "journal"
        self._headless: list[FileHeader] = []
        self._needless: list[Gap] = []

    # ------------------------------------------------------------ looking

    def diagnose(self) -> Diagnosis:
        """Go through everything. Raises DataDirectoryDamaged where no repair of the journal can help."""
        stored = SnapshotStore(self._files, self._path / "snapshots").load_latest()
        position, snapshot = _read_snapshot(stored)
        holds = read_identity(self._path, self._files).holds
        planner = Planner(snapshot)
        headers = self._identify_all()
        spans = plan_spans(headers, position)
        if not spans:
            if stored is None and holds in (JOURNAL, SNAPSHOT):
                raise DataDirectoryDamaged(
                    f"{self._path} was used, and has neither a journal nor a snapshot: which topics there are is not "
                    "known, and a repair cannot help; restore journal/ and snapshots/ from a copy"
                )
            return self._begin_anew(planner, position, snapshot)
        needed = {span.header for span in spans}
        self._headless = [header for header in self._headless if header in needed]
        first = spans[0].header
        if first.base > position:
            if not snapshot.topics and not position:
                raise DataDirectoryDamaged(
                    f"{self._path} has no snapshot, and a journal from position {first.base} on: which topics there "
                    "are is not known, and a repair of the journal cannot help; restore snapshots/ from a copy"
                )
            planner.gap(
                Gap(position, first.base, self._header_before(first, position), "a file is missing")
            )
        end = position
        for span in spans:
            end = self._go_through(span, position, planner)
        reach = self._reach(position, snapshot)
        if end < reach:
            planner.gap(Gap(end, reach, spans[-1].header, "the journal ends there"))
        misses_snapshots = stored is None and holds == SNAPSHOT
        plan = planner.finish(max(end, reach))
        return Diagnosis(plan, self._headless, self._needless, misses_snapshots)

    def _reach(self, position: int, snapshot: BrokerSnapshot) -> int:
        """How far the journal had been synced, by the word of the snapshot and of the mark beside it."""
        path = self._journal / MARK_NAME
        marked = parse_mark(self._files.read_bytes(path)) if self._files.exists(path) else 0
        return max([position, marked, *(state.position for state in snapshot.topics)])

    def _sequences(self) -> list[int]:
        if not self._files.exists(self._journal):
            return []
        names = map(_NAME.match, self._files.listdir(self._journal))
        return sorted(int(name[1]) for name in names if name is not None)

    def _identify_all(self) -> list[FileHeader]:
        found: list[FileHeader] = []
        self._headless = []
        for sequence in self._sequences():
            content = self._read(sequence)
            header = identify(content[:FILE_HEADER_BYTES], sequence)
            if header is None:
                header = derive_header(content, sequence)
                if header is not None:
                    self._headless.append(header)
            if header is not None:
                found.append(header)
        return found

    def _begin_anew(self, planner: Planner, position: int, snapshot: BrokerSnapshot) -> Diagnosis:
        """There is no journal. Without a snapshot there is nothing at all."""
        if position:
            reach = max(position + _LEAST_BYTES, self._reach(position, snapshot))
            header = FileHeader(max(self._sequences(), default=0) + 1, position)
            self._headless.append(header)
            planner.gap(Gap(position, reach, header, "there is no journal"))
        return Diagnosis(planner.finish(position), self._headless, self._needless)

    def _header_before(self, first: FileHeader, position: int) -> FileHeader:
        if first.sequence < 2:
            raise DataDirectoryDamaged(
                f"the journal begins with file {first.sequence} at position {first.base}, where {position} is needed: "
                "the journal and the snapshots do not belong together; restore both from one copy"
            )
        header = FileHeader(first.sequence - 1, position)
        self._headless.append(header)
        return header

    def _go_through(self, span: Span, position: int, planner: Planner) -> int:
        """All of one file; returns where it ends."""
        content, header = self._read(span.header.sequence), span.header
        limit = None if span.end < 0 else span.end
        end = header.base
        for piece in salvage(content, header, header.base, limit):
            if isinstance(piece, Gap):
                end = piece.end
                self._split(piece, position, planner)
                continue
            record, body_at = piece
            end = record.end
            if record.position < position < end:
                raise DataDirectoryDamaged(
                    f"the newest snapshot is as of position {position}, where the journal has the middle of a record: "
                    "they do not belong together; restore both from one copy"
                )
            if record.position >= position:
                body = content[body_at : body_at + record.body_bytes]
                planner.record(
                    JournalRecord(record.position, record.end, record.kind, record.topic_id, body)
                )
        return end

    def _split(self, gap: Gap, position: int, planner: Planner) -> None:
        """What the snapshot has is not lost; a start needs to come up to its position all the same."""
        if gap.end > position:
            planner.gap(gap._replace(first=max(gap.first, position)))
        if gap.first < position <= gap.end:
            self._needless.append(gap._replace(end=position))

    def _read(self, sequence: int) -> memoryview:
        return memoryview(self._files.read_bytes(self._path_of(sequence)))

    def _path_of(self, sequence: int) -> Path:
        return self._journal / f"{sequence:010d}.journal"

    # ------------------------------------------------------------ mending

    def mend(self, found: Diagnosis, moment: str, report: str) -> Path:
        """Do what the plan says; returns where the originals are. `moment` names the folder."""
        kept = self._path / QUARANTINE / moment
        if self._files.exists(kept):
            raise InvalidArgument(f"{kept} is there already: try again in a second")
        contents = self._mended(found)
        self._files.mkdir(kept / "journal", sync=True)
        self._files.write_atomic(kept / REPORT, report.encode())
        for sequence in contents:
            path = self._path_of(sequence)
            if self._files.exists(path):
                self._files.write_atomic(kept / "journal" / path.name, self._files.read_bytes(path))
        self._files.mkdir(self._journal, sync=True)
        for sequence, content in contents.items():
            self._files.write_atomic(self._path_of(sequence), content)
        if found.misses_snapshots:
            self._forget_snapshots(kept)
        return kept

    def _forget_snapshots(self, kept: Path) -> None:
        file = self._path / "danubius.json"
        identity = read_identity(self._path, self._files)
        self._files.write_atomic(kept / file.name, self._files.read_bytes(file))
        self._files.write_atomic(
            file, encode_identity(msgspec.structs.replace(identity, holds=JOURNAL))
        )

    def _mended(self, found: Diagnosis) -> dict[int, bytearray]:
        contents: dict[int, bytearray] = {}

        def content_of(header: FileHeader) -> bytearray:
            if header.sequence not in contents:
                path = self._path_of(header.sequence)
                content = self._files.read_bytes(path) if self._files.exists(path) else b""
                contents[header.sequence] = bytearray(content)
            return contents[header.sequence]

        for header in found.headless:
            _put(content_of(header), 0, pack_file_header(header))
        written = found.plan.records()
        written += [
            (gap.file, FILE_HEADER_BYTES + gap.first - gap.file.base, filler(gap, []))
            for gap in found.needless
        ]
        for header, at, record in written:
            _put(content_of(header), at, record)
        return contents


def _read_snapshot(stored: Snapshot | None) -> tuple[int, BrokerSnapshot]:
    if stored is None:
        return 0, BrokerSnapshot(1, [])
    try:
        return stored.position, decode_snapshot(stored.data)
    except msgspec.MsgspecError as error:
        raise DataDirectoryDamaged(
            f"the snapshot cannot be read by this version: {error}"
        ) from error


def _put(content: bytearray, at: int, data: bytes) -> None:
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data
