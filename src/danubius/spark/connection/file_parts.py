# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""A broker's ledger files, read by a process on the same machine instead of sent by the broker.

Invariants: a file is read only if it is the very one that the broker named (machine, device, inode); what is handed out
has the checksums that the broker named; whatever is not so gives None, and then the broker sends the bytes. After a few
such answers in a row the broker is not asked for places any more.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from danubius.record.checksum import crc32c
from danubius.runtime.machine import running_machine

if TYPE_CHECKING:
    from danubius.model.file_part import FilePart

OPEN_MAX: Final = 8
FAILURES_MAX: Final = 3


class FileParts:
    """The files that one client reads."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._failures = 0 if running_machine() else FAILURES_MAX

    @property
    def is_worth_asking(self) -> bool:
        """Whether parts of files may be of use here."""
        return self._failures < FAILURES_MAX

    def read(self, part: FilePart) -> memoryview | None:
        """The blocks, proven; None if they cannot be had this way."""
        if part.machine != running_machine():
            self._failures = FAILURES_MAX
            return None
        try:
            data = self._read(part)
        except OSError:
            data = None
        self._failures = self._failures + 1 if data is None else 0
        return data

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _read(self, part: FilePart) -> memoryview | None:
        descriptor = self._descriptor(part)
        if descriptor is None:
            return None
        # Memory that Arrow had before: new memory comes page by page, which costs as much as the reading.
        from pyarrow import allocate_buffer

        view = memoryview(allocate_buffer(part.size)).cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(descriptor, [view[done:]], part.position + done)
            if not count:
                return None
            done += count
        at = 0
        for size, crc in part.blocks:
            if crc32c(view[at : at + size]) != crc:
                return None
            at += size
        return view

    def _descriptor(self, part: FilePart) -> int | None:
        """Kept open for the next part: the system reads ahead for those who read on."""
        key = (part.path, part.device, part.inode)
        descriptor = self._open.get(key)
        if descriptor is not None:
            return descriptor
        descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
        facts = os.fstat(descriptor)
        if (facts.st_dev, facts.st_ino) != (part.device, part.inode):
            os.close(descriptor)
            return None
        self._open[key] = descriptor
        if len(self._open) > OPEN_MAX:
            os.close(self._open.popitem(last=False)[1])
        return descriptor
