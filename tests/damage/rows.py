"""The rows of the table: every file of every kind of store."""

from __future__ import annotations

from typing import Final

from damage.damages import Target, journal, named, nth, own_ledgers, slots

_DISKLESS: Final = "objects/diskless/"


def _ledgers(prefix: str) -> list[Target]:
    return [
        Target("ledger in a file of its own", nth(own_ledgers(prefix), -1)),
        Target("its index", nth(named(f"{prefix}02/", ".index"), -1)),
        Target("pool file, full", nth(named(f"{prefix}pool/", ".pool"), 0)),
        Target("pool file, newest", nth(named(f"{prefix}pool/", ".pool"), -1)),
        Target("every index", named(prefix, ".index")),
        Target("all of `ledgers/`", named(prefix), prefix),
    ]


def _pieces(prefix: str) -> list[Target]:
    data, index = "-d-0000000000000000", "-i-0000000000000000"
    return [
        Target(
            "ledger object, of a sealed one",
            nth(named(f"{prefix}0000000000000002/00000000/", data), 0),
        ),
        Target("ledger object, of the last one", nth(named(f"{prefix}0000000000000002/"), -1)),
        Target("index object", nth(named(f"{prefix}0000000000000002/00000000/", index), 0)),
    ]


_JOURNAL: Final = [
    Target("`journal/`, for the older snapshot only", journal("older")),
    Target("`journal/`, the first that is read", journal("first")),
    Target("`journal/`, in the middle", journal("middle")),
    Target("`journal/`, the newest", journal("newest")),
    Target("`journal/`, spare files", journal("spare")),
    Target("`journal/end`", named("data/journal/end")),
    Target("all of `journal/`", named("data/journal/"), "data/journal/"),
    Target("`snapshots/`, the newest", nth(named("data/snapshots/", ".snapshot"), -1)),
    Target("`snapshots/`, the older", nth(named("data/snapshots/", ".snapshot"), 0)),
    Target("all of `snapshots/`", named("data/snapshots/"), "data/snapshots/"),
]

_ROWS: Final[dict[str, list[Target]]] = {
    "local": [
        Target("`danubius.json`", named("data/danubius.json")),
        *_JOURNAL,
        *_ledgers("data/ledgers/"),
    ],
    "tier": [
        Target("`danubius.json`", named("data/danubius.json")),
        Target("`owner`", named("objects/*/owner")),
        Target("object of a ledger", nth(named("objects/*/0000000000000002/"), 0)),
        Target("all objects of a topic", named("objects/*/0000000000000002/"), "objects/"),
        Target("all of `snapshots/`", named("data/snapshots/"), "data/snapshots/"),
        Target("all of the object store", named("objects/"), "objects/"),
    ],
    "object": [
        Target("`ledger-store.json`", named("data/ledger-store.json")),
        Target("the claim", named("objects/*/ffffffffffffffff/")),
        *_pieces("objects/*/"),
        Target("`journal/`, the newest", journal("newest")),
        Target("all of `snapshots/`", named("data/snapshots/"), "data/snapshots/"),
        Target("all of the object store", named("objects/"), "objects/"),
    ],
    "remote": [
        Target("`ledger-store.json`", named("data/ledger-store.json")),
        Target("ledger in a file of its own", nth(own_ledgers("server/"), -1)),
        Target("its index", nth(named("server/*/02/", ".index"), -1)),
        Target("pool file, full", nth(named("server/*/pool/", ".pool"), 0)),
        Target("pool file, newest", nth(named("server/*/pool/", ".pool"), -1)),
        Target("all of `snapshots/`", named("data/snapshots/"), "data/snapshots/"),
        Target("all of the server's store", named("server/"), "server/"),
    ],
    "diskless": [
        Target("`identity.json`", named(f"{_DISKLESS}identity.json")),
        Target("`epochs/`, the newest", nth(named(f"{_DISKLESS}epochs/"), -1)),
        Target("all of `epochs/`", named(f"{_DISKLESS}epochs/"), f"{_DISKLESS}epochs/"),
        Target("`snapshots/`, the newest", nth(named(f"{_DISKLESS}snapshots/"), -1)),
        Target("`snapshots/`, the older", nth(named(f"{_DISKLESS}snapshots/"), 0)),
        Target("all of `snapshots/`", named(f"{_DISKLESS}snapshots/"), f"{_DISKLESS}snapshots/"),
        *_pieces(f"{_DISKLESS}ledgers/"),
        Target("all of `ledgers/`", named(f"{_DISKLESS}ledgers/"), f"{_DISKLESS}ledgers/"),
        Target("`journal/`, the first that is read", slots("first")),
        Target("`journal/`, in the middle", slots("middle")),
        Target("`journal/`, the newest", slots("newest")),
        Target("`journal/`, a fence", slots("fence")),
        Target("all of `journal/`", named(f"{_DISKLESS}journal/"), f"{_DISKLESS}journal/"),
    ],
}
_NOT_STOPPED: Final = {"`journal/`, the first that is read", "`journal/`, in the middle"}
"""After a stop in good order the newest file is the only one that is read."""


def rows_of(kind: str, *, is_killed: bool) -> list[Target]:
    return [row for row in _ROWS[kind] if is_killed or row.label not in _NOT_STOPPED]
