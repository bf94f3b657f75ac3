"""The trace of a simulated world: one number for all that happened, in order. Two runs of a seed have the same."""

from __future__ import annotations

import hashlib


class Trace:
    """Takes facts; says what they come to. `lines` keeps them, to find where two runs part."""

    def __init__(self, *, keep: bool = False) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: list[str] | None = [] if keep else None
        self.count = 0

    def add(self, *facts: object) -> None:
        line = " ".join(map(str, facts))
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.count += 1
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
