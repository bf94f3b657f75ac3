"""A new file that is written once, from its beginning to its end, and not read soon.

Where the file system lets it, its bytes go past the system's cache, a piece at a time. Memory that the cache never had
before costs more than the write (above all on virtual machines, whose hosts take back what is free), and many megabytes
that are flushed at once are what every other sync of that disk waits for.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Final

from danubius.errors import StorageFailed
from danubius.runtime.files import LocalFile, translate
from danubius.runtime.privacy import FILE_MODE

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.model.buffers import Buffer

PIECE_BYTES: Final = 1 << 20
ALIGNMENT: Final = 4096
"""Of what goes past the cache: memory, position and size. No disk wants more."""
_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
_REFUSED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
"""How a file system says that nothing goes past its cache, or not so."""


class LargeFile:
    """`write` what it is made of, then `sync`: its content is durable, its name is not."""

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        """The file must not be there yet; `direct`: past the cache, if that is possible."""
        self._piece = mmap.mmap(-1, PIECE_BYTES)  # begins where a page does
        self._filled = 0
        """What is in the piece."""
        self._size = 0
        """What is in the file."""
        try:
            descriptor = _open(path, _DIRECT if direct else 0)
        except OSError as error:
            raise translate(error, "open", path) from error
        self._file = LocalFile(path, descriptor)

    @property
    def is_direct(self) -> bool:
        """Whether it goes past the cache."""
        return bool(fcntl.fcntl(self._file.descriptor, fcntl.F_GETFL) & _DIRECT)

    def write(self, data: Buffer) -> None:
        """Append; what does not fill a piece waits for more, or for `sync`."""
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                count = min(len(view) - at, PIECE_BYTES - self._filled)
                self._piece[self._filled : self._filled + count] = view[at : at + count]
                self._filled += count
                at += count
                if self._filled == PIECE_BYTES:
                    self._flush()

    def sync(self) -> None:
        """Nothing may be written after this."""
        size = self._size + self._filled
        # The last piece is as long as it must be, and the file as long as it is.
        self._filled += -self._filled % ALIGNMENT
        self._flush()
        self._file.truncate(size)
        self._file.datasync()
        self._file.forget_cached()

    def close(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        piece = memoryview(self._piece)[: self._filled]
        try:
            self._file.pwritev([piece], self._size)
        except StorageFailed as error:
            is_refused = isinstance(error.__cause__, OSError) and error.__cause__.errno in _REFUSED
            if not (is_refused and self.is_direct):
                raise
            # It wants another alignment than ours, or wrote less than it was given: then as everybody writes.
            self._leave_direct()
            self._file.pwritev([piece], self._size)
        self._size += self._filled
        self._filled = 0

    def _leave_direct(self) -> None:
        flags = fcntl.fcntl(self._file.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._file.descriptor, fcntl.F_SETFL, flags & ~_DIRECT)


def _open(path: Path, direct: int) -> int:
    flags = os.O_CLOEXEC | os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags | direct, FILE_MODE)
    except OSError as error:
        if error.errno not in _REFUSED or not direct:
            raise
    # When a file system refuses, it may have made the file.
    path.unlink(missing_ok=True)
    return os.open(path, flags, FILE_MODE)
