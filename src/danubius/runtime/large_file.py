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

from danubius.runtime.files import translate

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from danubius.runtime.files import Buffer

PIECE_BYTES: Final = 1 << 20
ALIGNMENT: Final = 4096
"""Of what goes past the cache: memory, position and size. No disk wants more."""
_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)


class LargeFile:
    """`write` what it is made of, then `sync`: it is durable, though its name is not. Closed when it is left."""

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        """The file must not be there yet; `direct`: past the cache, if that is possible."""
        self._path = path
        self._size = 0
        """What is in the file."""
        self._filled = 0
        """What is in the piece."""
        flags = os.O_CLOEXEC | os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            self._descriptor = _open(path, flags, _DIRECT if direct else 0)
        except OSError as error:
            raise translate(error, "open", path) from error
        self._piece = mmap.mmap(-1, PIECE_BYTES)  # begins where a page does

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)
        self._piece.close()

    @property
    def is_direct(self) -> bool:
        """Whether it goes past the cache."""
        return bool(_DIRECT and fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & _DIRECT)

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
        try:
            os.ftruncate(self._descriptor, size)
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise translate(error, "sync", self._path) from error
        if not self.is_direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def _flush(self) -> None:
        with memoryview(self._piece) as piece:
            at = 0
            while at < self._filled:
                try:
                    at += os.pwrite(self._descriptor, piece[at : self._filled], self._size + at)
                except OSError as error:
                    if error.errno != errno.EINVAL or not self.is_direct:
                        raise translate(error, "write to", self._path) from error
                    # It wants another alignment than ours: then as everybody writes.
                    self._leave_direct()
        self._size += self._filled
        self._filled = 0

    def _leave_direct(self) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT)


def _open(path: Path, flags: int, direct: int) -> int:
    try:
        return os.open(path, flags | direct, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL or not direct:
            raise
    # This file system has no way past its cache; when it says so, it may have made the file.
    path.unlink(missing_ok=True)
    return os.open(path, flags, 0o644)
