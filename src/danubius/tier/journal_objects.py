"""The objects of a journal and of a broker's starts: names, bytes, and the calls that fencing asks for.

Everything blocks. A failing store is StorageFailed, also where it is misconfigured: whoever writes tries again.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final, TypeVar

from danubius.errors import (
    BrokerReplaced,
    DataDirectoryDamaged,
    ObjectNotFound,
    StorageFailed,
    TierMisconfigured,
)
from danubius.runtime.clock import SystemClock
from danubius.runtime.parallel import Parallel
from danubius.tier.core.fencing import (
    Answer,
    ListEpochs,
    ListSlots,
    PutEpoch,
    PutFence,
    ReadSlots,
)
from danubius.tier.core.journal_object import (
    HEADER_BYTES,
    RECORDS,
    Author,
    SlotHeader,
    pack_header,
    parse_header,
    read_records,
    slot_name,
)
from danubius.wal.core.format import SEQUENCE_MAX, pack_record
from danubius.wal.journal import JournalRecord

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from danubius.model.buffers import Buffer
    from danubius.runtime.clock import Clock
    from danubius.tier.core.fencing import Call
    from danubius.tier.core.slots import Group
    from danubius.tier.objects import ObjectStore

Result = TypeVar("Result")

JOURNAL: Final = "journal/"
EPOCHS: Final = "epochs/"
READS_AT_ONCE: Final = 16
OBJECTS_AT_ONCE: Final = 8
"""Whole ones, which are in memory until they were replayed."""
READ_TRIES: Final = 2
"""An object that fails its checksum is read again before it counts as damaged."""
_NO_FENCE: Final = bytes(8)
"""Behind a header without records: only a fence is as short as a header, and told by that."""
_EPOCH: Final = re.compile(r"[0-9a-f]{8}")
_SLOT: Final = re.compile(r"[0-9a-f]{16}")


class JournalObjects:
    """What lies below the prefix of one broker."""

    def __init__(
        self,
        objects: ObjectStore,
        prefix: str,
        clock: Clock | None = None,
        *,
        reads_at_once: int = READS_AT_ONCE,
    ) -> None:
        self._objects = objects
        self._prefix = prefix
        self._clock = clock or SystemClock()
        self._reads_at_once = reads_at_once

    # ------------------------------------------------------------ fencing

    def run(self, steps: Generator[Call, Answer, Result], deadline_s: float) -> Result:
        """Do what fencing asks for, until it is done. After the deadline no further call is begun."""
        ends_ns = self._clock.monotonic_ns() + int(deadline_s * 1e9)
        answer: Answer | None = None
        try:
            while True:
                call = next(steps) if answer is None else steps.send(answer)
                if self._clock.monotonic_ns() > ends_ns:
                    raise StorageFailed(
                        f"{self._objects.url} was too slow to take the journal over within {deadline_s:g} s"
                    )
                answer = self.answer(call)
        except StopIteration as stop:
            return stop.value
        finally:
            steps.close()

    def answer(self, call: Call) -> Answer:
        with passing():
            match call:
                case ListEpochs():
                    return Answer(numbers=frozenset(self._numbers(EPOCHS, _EPOCH)))
                case ListSlots():
                    return Answer(numbers=frozenset(self._numbers(JOURNAL, _SLOT)))
                case PutEpoch(author):
                    return Answer(process=self._put_epoch(author))
                case PutFence(header):
                    name = self._slot(header.slot)
                    if self._objects.put(name, [pack_header(header)]):
                        return Answer(headers={header.slot: header})
                    return Answer(headers={header.slot: self.header(header.slot)})
                case ReadSlots(slots):
                    return Answer(headers=self._headers(slots))

    def _numbers(self, folder: str, pattern: re.Pattern[str]) -> Iterator[int]:
        below = self._prefix + folder
        for info in self._objects.list(below):
            name = info.name.removeprefix(below)
            if pattern.fullmatch(name):
                yield int(name, 16)

    def _put_epoch(self, author: Author) -> int:
        name = f"{self._prefix}{EPOCHS}{author.epoch:08x}"
        own = f"{author.process:016x}".encode()
        if self._objects.put(name, [own]):
            return author.process
        found = self._objects.get(name, 0, len(own))
        try:
            return int(found, 16)
        except ValueError:
            raise DataDirectoryDamaged(f"{name} in {self._objects.url} is damaged") from None

    def _headers(self, slots: Sequence[int]) -> dict[int, SlotHeader]:
        found: dict[int, SlotHeader] = {}

        def read(slot: int) -> None:
            with contextlib.suppress(ObjectNotFound):
                found[slot] = self.header(slot)

        parallel = Parallel("danubius-slots", self._reads_at_once)
        try:
            parallel.run(read, slots)
        finally:
            parallel.close()
        return found

    # ------------------------------------------------------------ slots

    def header(self, slot: int) -> SlotHeader:
        """Raises ObjectNotFound, and DataDirectoryDamaged for one that fails its checksum."""
        with passing():
            for _ in range(READ_TRIES):
                data = self._objects.get(self._slot(slot), 0, HEADER_BYTES)
                header = parse_header(data, slot)
                if header is not None:
                    return header
        raise DataDirectoryDamaged(
            f"{self._slot(slot)} in {self._objects.url} has no header that passes its checksum: "
            "restore the object from a copy"
        )

    def has_records(self) -> bool:
        """Whether there is anything but fences."""
        with passing():
            listed = self._objects.list(self._prefix + JOURNAL)
            return any(info.size > HEADER_BYTES for info in listed)

    def last_epoch(self) -> int:
        """Who wrote the last slot: a start writes fences behind all others', and those stay."""
        last = max(self._numbers(JOURNAL, _SLOT), default=None)
        return 0 if last is None else self.header(last).author.epoch

    def is_filled(self, slot: int) -> bool:
        with passing():
            return self._objects.stat(self._slot(slot)) is not None

    def read_all(self, headers: Sequence[SlotHeader]) -> Iterator[JournalRecord]:
        """The records of these slots, in order; a few objects are read at once. Raises as `records` does."""
        parallel = Parallel("danubius-slots", min(self._reads_at_once, OBJECTS_AT_ONCE))
        found: dict[int, list[JournalRecord]] = {}

        def read(header: SlotHeader) -> None:
            found[header.slot] = self.records(header)

        try:
            for first in range(0, len(headers), OBJECTS_AT_ONCE):
                some = headers[first : first + OBJECTS_AT_ONCE]
                parallel.run(read, some)
                for header in some:
                    yield from found.pop(header.slot)
        finally:
            parallel.close()

    def records(self, header: SlotHeader) -> list[JournalRecord]:
        """Raises DataDirectoryDamaged where they are not as they were written, or are gone."""
        name, size = self._slot(header.slot), header.end - header.base
        problem = ""
        for _ in range(READ_TRIES):
            try:
                with passing():
                    body = memoryview(self._objects.get(name, HEADER_BYTES, size))
                return [
                    JournalRecord(
                        record.position,
                        record.end,
                        record.kind,
                        record.topic_id,
                        memoryview(bytearray(content)),
                    )
                    for record, content in read_records(header, body)
                ]
            except (ObjectNotFound, ValueError) as error:
                problem = str(error)
        raise DataDirectoryDamaged(
            f"{name} in {self._objects.url} is damaged ({problem}): restore the object from a copy"
        )

    def put_group(self, group: Group, author: Author) -> None:
        """Fill a slot, if nobody has. Raises BrokerReplaced where it is somebody else's."""
        header = SlotHeader(
            RECORDS,
            author,
            group.slot,
            group.base,
            group.end,
            group.promise,
            group.claim.floor,
            records=len(group.entries),
            kept=group.claim.kept,
        )
        buffers: list[Buffer] = [pack_header(header)]
        at, sequence = group.base, group.slot & SEQUENCE_MAX
        for entry in group.entries:
            body_bytes, kind = entry.body_bytes, entry.kind
            pack_record(
                at, group.base, entry.topic_id, sequence, body_bytes, kind, entry.body, buffers
            )
            at += entry.size
        if not group.entries:
            buffers.append(_NO_FENCE)
        with passing():
            if self._objects.put(self._slot(group.slot), [b"".join(buffers)]):
                return
        self.check_own(group.slot, author)

    def check_own(self, slot: int, author: Author) -> None:
        """A filled slot: an answer of ours was lost, or another start has the journal, which raises BrokerReplaced."""
        found = self.header(slot).author
        if found.process == author.process and found.epoch > author.epoch:
            raise StorageFailed("this group was given up")
        if found != author:
            raise BrokerReplaced(
                f"start {found.epoch} of this broker has taken over {self._objects.url}; this is start {author.epoch}"
            )

    def delete(self, slot: int) -> None:
        with passing():
            self._objects.delete(self._slot(slot))

    def slots_below(self, floor: int) -> list[int]:
        """What a trim may delete: all but fences, which keep whoever was replaced from going on, for ever."""
        below = self._prefix + JOURNAL
        found: list[int] = []
        with passing():
            for info in self._objects.list(below):
                name = info.name.removeprefix(below)
                if _SLOT.fullmatch(name) and info.size > HEADER_BYTES and int(name, 16) < floor:
                    found.append(int(name, 16))
        return sorted(found)

    def _slot(self, slot: int) -> str:
        return f"{self._prefix}{JOURNAL}{slot_name(slot)}"


@contextlib.contextmanager
def passing() -> Generator[None]:
    """Somebody may set right what is wrong with the store while the broker runs."""
    try:
        yield
    except TierMisconfigured as error:
        raise StorageFailed(error.message) from error
