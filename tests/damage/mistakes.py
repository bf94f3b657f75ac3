"""What happens to several files at once: the things that people and machines really do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from damage.damages import (
    Target,
    empty,
    foreign,
    garbage_inside,
    journal,
    missing,
    named,
    nth,
    older,
)

if TYPE_CHECKING:
    from damage.templates import Template
    from damage.worlds import Image


class Mistake(NamedTuple):
    """Some of it, on one kind of store."""

    kind: str
    make: Callable[[Template], Image]
    is_killed: bool = True


_JOURNAL: Final = Target("journal", named("data/journal/"), "data/journal/")
_SNAPSHOTS: Final = Target("snapshots", named("data/snapshots/"), "data/snapshots/")
_LEDGERS: Final = Target("ledgers", named("data/ledgers/"), "data/ledgers/")
_IDENTITY: Final = Target("danubius.json", named("data/danubius.json"))
_DIRECTORY: Final = Target("directory", named("data/"), "data/")
_NEWEST_JOURNAL: Final = Target("newest", journal("newest"))
_FIRST_JOURNAL: Final = Target("first", journal("first"))
_NEWEST_SNAPSHOT: Final = Target("snapshot", nth(named("data/snapshots/", ".snapshot"), -1))
_OLDER_SNAPSHOT: Final = Target("snapshot", nth(named("data/snapshots/", ".snapshot"), 0))
_Damage = Callable[["Template", Target], "Image"]


def _both(*steps: tuple[_Damage, Target]) -> Callable[[Template], Image]:
    """One damage after the other."""

    def make(template: Template) -> Image:
        image = template.image
        for damage, target in steps:
            image = damage(template._replace(image=image), target)
        return image

    return make


MISTAKES: Final[dict[str, Mistake]] = {
    "`snapshots/` and `journal/` are gone": Mistake(
        "local", _both((missing, _SNAPSHOTS), (missing, _JOURNAL))
    ),
    "`snapshots/` and `journal/` are empty folders": Mistake(
        "local", _both((empty, _SNAPSHOTS), (empty, _JOURNAL))
    ),
    "the same after a stop in good order": Mistake(
        "local", _both((missing, _SNAPSHOTS), (missing, _JOURNAL)), is_killed=False
    ),
    "the same, ledgers in an object store": Mistake(
        "object", _both((missing, _SNAPSHOTS), (missing, _JOURNAL))
    ),
    "the same, ledgers on a storage server": Mistake(
        "remote", _both((missing, _SNAPSHOTS), (missing, _JOURNAL))
    ),
    "the same, with cold storage": Mistake(
        "tier", _both((missing, _SNAPSHOTS), (missing, _JOURNAL))
    ),
    "only `danubius.json` is left": Mistake(
        "local", _both((missing, _SNAPSHOTS), (missing, _JOURNAL), (missing, _LEDGERS))
    ),
    "only `ledgers/` is left": Mistake(
        "local", _both((missing, _SNAPSHOTS), (missing, _JOURNAL), (missing, _IDENTITY))
    ),
    "`snapshots/` and `ledgers/` are gone": Mistake(
        "local", _both((missing, _SNAPSHOTS), (missing, _LEDGERS))
    ),
    "`journal/` and `ledgers/` are gone": Mistake(
        "local", _both((missing, _JOURNAL), (missing, _LEDGERS))
    ),
    "the newest snapshot is gone, the older is garbage": Mistake(
        "local", _both((missing, _NEWEST_SNAPSHOT), (garbage_inside, _OLDER_SNAPSHOT))
    ),
    "the newest snapshot and the newest journal file are gone": Mistake(
        "local", _both((missing, _NEWEST_SNAPSHOT), (missing, _NEWEST_JOURNAL))
    ),
    "the newest snapshot is garbage, the first journal file gone": Mistake(
        "local", _both((garbage_inside, _NEWEST_SNAPSHOT), (missing, _FIRST_JOURNAL))
    ),
    "`snapshots/` and `journal/` of an older copy, newer ledgers": Mistake(
        "local", _both((older, _SNAPSHOTS), (older, _JOURNAL))
    ),
    "`snapshots/`, `journal/` and `danubius.json` of an older copy, newer ledgers": Mistake(
        "local", _both((older, _SNAPSHOTS), (older, _JOURNAL), (older, _IDENTITY))
    ),
    "`snapshots/` and `danubius.json` of an older copy": Mistake(
        "local", _both((older, _SNAPSHOTS), (older, _IDENTITY))
    ),
    "`danubius.json` and `snapshots/` of another broker": Mistake(
        "local", _both((foreign, _IDENTITY), (foreign, _SNAPSHOTS))
    ),
    "`snapshots/` and `journal/` of another broker": Mistake(
        "local", _both((foreign, _JOURNAL), (foreign, _SNAPSHOTS))
    ),
    "the data directory of an older copy, newer cold storage": Mistake(
        "tier", _both((older, _DIRECTORY))
    ),
    "the data directory of an older copy, newer ledgers in an object store": Mistake(
        "object", _both((older, _DIRECTORY))
    ),
    "the data directory of an older copy, newer ledgers on a storage server": Mistake(
        "remote", _both((older, _DIRECTORY))
    ),
    "`danubius.json` of another broker, with cold storage": Mistake(
        "tier", _both((foreign, _IDENTITY))
    ),
    "`danubius.json` of another broker, ledgers in an object store": Mistake(
        "object", _both((foreign, _IDENTITY))
    ),
    "`danubius.json` of another broker, ledgers on a storage server": Mistake(
        "remote", _both((foreign, _IDENTITY))
    ),
}
