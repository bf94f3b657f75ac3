"""Answers about a field that there is not: where it stood, and what was most likely meant.

msgspec names the field and the path to it; here the path is followed through the types, to find the names that there
are. Only for sentences: nothing is decided here.
"""

from __future__ import annotations

import difflib
import re
import typing
from typing import Any, Final, NamedTuple

import msgspec

SHOWN_MAX: Final = 100
"""Characters of a name from outside that are repeated, and looked at."""
_START: Final = "Object contains unknown field `"
_PLACE: Final = "` - at `"
_PATH: Final = re.compile(r"\$(?:\.\w+|\[[^\]`]*\])*")
_STEP: Final = re.compile(r"\.(\w+)|\[([^\]]*)\]")


class UnknownField(NamedTuple):
    """A field that a decoder refused."""

    name: str
    """Cut off where it is longer than anybody would mean."""
    where: str
    """The name of what it stood in; empty at the top."""
    known: list[str]
    """What may stand there."""

    @property
    def nearest(self) -> str:
        """The name that it resembles, if any."""
        return next(iter(difflib.get_close_matches(self.name, self.known, n=1)), "")

    @property
    def hint(self) -> str:
        """What would be right."""
        if self.nearest:
            return f"did you mean {self.nearest!r}?"
        return f"it takes {', '.join(self.known)}" if self.known else "it takes nothing"

    def sentence(self) -> str:
        place = f" in {self.where}" if self.where else ""
        return f"there is no {self.name!r}{place}; {self.hint}"


def find_unknown(problem: Exception, kind: Any) -> UnknownField | None:
    """The field that a decoder of `kind` stumbled over; None if something else is wrong."""
    said = str(problem)
    if not said.startswith(_START):
        return None
    said = said[len(_START) :].removesuffix("`")
    name, _, path = said.rpartition(_PLACE)
    where, kinds = "", _structs(kind) if _PATH.fullmatch(path) else []
    for field, index in _STEP.findall(path):
        where = field or where
        kinds = [inner for one in kinds for inner in _step(one, field, index)]
    if not kinds:  # it stood at the top, or its name looks like a path
        name, where, kinds = said, "", _structs(kind)
    known = dict.fromkeys(field for one in kinds for field in _names(one))
    return UnknownField(name[:SHOWN_MAX], where, list(known))


def explain(problem: Exception, kind: Any) -> str:
    """The sentence about what a decoder of `kind` refused."""
    unknown = find_unknown(problem, kind)
    return str(problem) if unknown is None else unknown.sentence()


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    """The structs that a value of this type may be, or be made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [struct for part in typing.get_args(kind) for struct in _structs(part)]


def _step(kind: type[msgspec.Struct], name: str, index: str) -> list[type[msgspec.Struct]]:
    fields = msgspec.structs.fields(kind)
    if name:
        return [
            one for field in fields if field.encode_name == name for one in _structs(field.type)
        ]
    if kind.__struct_config__.array_like and index.isdigit():
        return _structs(fields[int(index)].type) if int(index) < len(fields) else []
    return [kind]  # an element of a list or map, whose types were opened with it


def _names(kind: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]
