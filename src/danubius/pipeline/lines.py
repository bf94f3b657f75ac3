"""Line numbers of things in a TOML file: the parser of the standard library forgets it, and errors must say it.

Invariant: a key that begins a line is found on that line; one inside an inline table is found where the table begins.
What looks like a key inside a multi-line text is not taken for one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLE: Final = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]")
_KEY: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"))*)\s*=""")
_PART: Final = re.compile(r"""[\w-]+|"([^"]*)"|'([^']*)'""")
_QUOTES: Final = ('"""', "'''")

Path = tuple[str, ...]


class Lines(NamedTuple):
    """The line of every table and key of one file."""

    name: str
    found: dict[Path, int]
    below: set[Path]
    """Keys whose text begins on the line below them: TOML drops a newline after the opening quotes."""

    def at(self, *path: str) -> str:
        """`FILE:LINE` of the nearest thing that stands in the file."""
        for end in range(len(path), 0, -1):
            if (line := self.found.get(path[:end])) is not None:
                return f"{self.name}:{line}"
        return self.name

    def inside(self, path: Path, offset: int) -> str:
        """`FILE:LINE` of a line inside the text of a key."""
        if path not in self.found:
            return self.at(*path)
        return f"{self.name}:{self.found[path] + offset + (path in self.below)}"


def locate(text: str, name: str) -> Lines:
    found: dict[Path, int] = {}
    below: set[Path] = set()
    prefix: Path = ()
    for number, line in _outside_texts(text):
        if match := _TABLE.match(line):
            prefix = _parts(match[1])
            found.setdefault(prefix, number)
        elif match := _KEY.match(line):
            path = (*prefix, *_parts(match[1]))
            found.setdefault(path, number)
            if line.rstrip().endswith(_QUOTES):
                below.add(path)
    return Lines(name, found, below)


def _outside_texts(text: str) -> Iterator[tuple[int, str]]:
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not quote:
            yield number, line
        rest = line
        while True:
            if quote:
                _, closed, rest = rest.partition(quote)
                if not closed:
                    break
                quote = ""
            else:
                starts = [(rest.find(q), q) for q in _QUOTES if q in rest]
                if not starts or _is_comment(rest, min(starts)[0]):
                    break
                at, quote = min(starts)
                rest = rest[at + 3 :]


def _is_comment(line: str, end: int) -> bool:
    before = line[:end]
    return "#" in before and before.count('"') % 2 == 0


def _parts(dotted: str) -> Path:
    return tuple(match[1] or match[2] or match[0] for match in _PART.finditer(dotted))
