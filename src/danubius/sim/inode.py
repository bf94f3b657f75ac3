"""One file of the simulated disk: what is written, what is durable, and what chance makes of the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

SECTOR_BYTES: Final = 512


class Inode:
    """A file's content as read back, as it is on the platter, and the changes between the two."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self._pending: list[tuple[int, bytes | None]] = []
        """(position, data) of a write, (size, None) of a truncation, oldest first."""

    def write(self, data: bytes, at: int) -> None:
        if data:
            _put(self.content, data, at)
            self._pending.append((at, data))

    def truncate(self, size: int) -> None:
        _resize(self.content, size)
        self._pending.append((size, None))

    def sync(self) -> None:
        for at, data in self._pending:
            if data is None:
                _resize(self.durable, at)
            else:
                _put(self.durable, data, at)
        self._pending.clear()

    def sync_last(self) -> None:
        """Make the last write durable, and nothing that is not."""
        at, data = self._pending.pop()
        assert data is not None, "a write was the last change"
        _put(self.durable, data, at)

    def fail_sync(self, dice: random.Random) -> None:
        """Some sectors reach the platter, the others never will, though reads still show them."""
        keep = dice.choice([0.0, 0.5, 1.0])
        for at, data in self._pending:
            if data is None:
                _resize(self.durable, at)
                continue
            for first, sector in _sectors(data, at):
                if dice.random() < keep:
                    _put(self.durable, sector, first)
        self._pending.clear()

    def crash(self, dice: random.Random) -> None:
        count = len(self._pending)
        mode = dice.choice(["nothing", "all", "prefix", "sectors"])
        if mode == "nothing":
            self._pending.clear()
        elif mode == "prefix":
            self._pending = self._pending[: dice.randint(0, count)]
            if self._pending and (last := self._pending[-1])[1] is not None:
                self._pending[-1] = (last[0], last[1][: dice.randint(0, len(last[1]))])
        if mode == "sectors":
            self.fail_sync(dice)
        else:
            self.sync()
        self.content = bytearray(self.durable)


def _sectors(data: bytes, at: int) -> list[tuple[int, bytes]]:
    end = at + len(data)
    starts = [at, *range((at // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES)]
    return [
        (start, data[start - at : min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES) - at])
        for start in starts
    ]


def _put(content: bytearray, data: bytes, at: int) -> None:
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if len(content) > size:
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
