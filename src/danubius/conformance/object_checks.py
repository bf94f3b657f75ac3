"""Promises that every ObjectStore keeps. See `danubius.tier.objects` for the port."""

from __future__ import annotations

from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.conformance.checks import Suite, expect, expect_raises, fail
from danubius.errors import InvalidArgument, ObjectNotFound
from danubius.model.limits import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from danubius.conformance.checks import Finding
    from danubius.tier.objects import ObjectStore

LARGE_BYTES: Final = 20 * MIB
"""More than two of the parts in which objects are sent."""
_WRITERS: Final = 10
_BAD_NAMES: Final = (
    "",
    "/a",
    "a/",
    "a//b",
    "../a",
    "a/../b",
    "a/.",
    ".hidden",
    "a b",
    "a\n",
    "ü",
    "a?b",
)
_AFTER_2020_MS: Final = 1_577_836_800_000


class Given(NamedTuple):
    """A store, and a prefix below which nothing is."""

    objects: ObjectStore
    prefix: str
    large_bytes: int = LARGE_BYTES

    def name(self, name: str) -> str:
        return self.prefix + name

    def all(self, name: str) -> bytes:
        return self.objects.get(self.name(name), 0, 1 << 30)


suite: Final[Suite[Given]] = Suite()


class _TestError(Exception):
    """What the parts of an object raise here."""


def run_object_checks(
    objects: ObjectStore, prefix: str, *, large_bytes: int = LARGE_BYTES
) -> Iterator[Finding]:
    """Run the suite below a prefix, which ends with a slash; everything that it stored is deleted again."""
    numbers = count(1)
    try:
        yield from suite.run(lambda: Given(objects, f"{prefix}check-{next(numbers)}/", large_bytes))
    finally:
        for info in list(objects.list(prefix)):
            objects.delete(info.name)


@suite.check("what was put is got back")
def _(given: Given) -> None:
    expect(given.objects.put(given.name("a"), [b"hello ", b"world"]), True, "the answer to a put")
    expect(given.all("a"), b"hello world", "the object")


@suite.check("parts may be any kind of buffer, come from a generator, and be empty")
def _(given: Given) -> None:
    def parts() -> Iterator[bytes | bytearray | memoryview]:
        yield b""
        yield bytearray(b"abc")
        yield memoryview(b"xdefx")[1:4]
        yield b""

    given.objects.put(given.name("a"), parts())
    expect(given.all("a"), b"abcdef", "the object")


@suite.check("an object may be empty")
def _(given: Given) -> None:
    given.objects.put(given.name("a"), [])
    expect(given.all("a"), b"", "the object")
    info = given.objects.stat(given.name("a"))
    expect(None if info is None else info.size, 0, "its size")
    expect([info.name for info in given.objects.list(given.prefix)], [given.name("a")], "the list")


@suite.check("any range is read; it is short at the object's end, and empty behind it")
def _(given: Given) -> None:
    name = given.name("a")
    given.objects.put(name, [b"0123456789"])
    for at, size in ((0, 10), (3, 4), (9, 1), (8, 10), (0, 100), (10, 5), (99, 5), (4, 0)):
        found = given.objects.get(name, at, size)
        expect(found, b"0123456789"[at : at + size], f"the range of {size} bytes at {at}")


@suite.check("an absent object is ObjectNotFound to who reads it, and None to who asks")
def _(given: Given) -> None:
    name = given.name("absent")
    expect_raises(ObjectNotFound, lambda: given.objects.get(name, 0, 10), "reading it")
    expect_raises(
        ObjectNotFound, lambda: given.objects.get(name, 50, 10), "reading behind its start"
    )
    expect(given.objects.stat(name), None, "what is said of it")


@suite.check("a folder is no object")
def _(given: Given) -> None:
    given.objects.put(given.name("folder/a"), [b"1"])
    expect(given.objects.stat(given.name("folder")), None, "what is said of the folder")
    expect_raises(
        ObjectNotFound, lambda: given.objects.get(given.name("folder"), 0, 1), "reading the folder"
    )


@suite.check("an object that is there is not replaced, unless that is asked for")
def _(given: Given) -> None:
    name = given.name("a")
    given.objects.put(name, [b"first, and long"])
    expect(given.objects.put(name, [b"second"]), False, "the answer to the second put")
    expect(given.all("a"), b"first, and long", "the object after it")
    expect(given.objects.put(name, [b"third"], replace=True), True, "the answer to a replacing put")
    expect(given.all("a"), b"third", "the object after that")
    expect(
        given.objects.put(given.name("b"), [b"new"], replace=True),
        True,
        "one that replaces nothing",
    )


@suite.check("the size is told, and when it was stored, or that nobody knows")
def _(given: Given) -> str | None:
    given.objects.put(given.name("a"), [b"12345"])
    info = given.objects.stat(given.name("a"))
    if info is None:
        fail("nothing is known of an object that was put")
    expect((info.name, info.size), (given.name("a"), 5), "what is said of it")
    if info.modified_ms == 0:
        return (
            "this store does not say when an object was stored: orphans are not found by their age"
        )
    if info.modified_ms < _AFTER_2020_MS:
        fail(f"it was stored at {info.modified_ms} ms after 1970, it says")
    return None


@suite.check("everything below a prefix is listed, with its size, and nothing beside it")
def _(given: Given) -> None:
    sizes = {"d/a": 1, "d/e/b": 2, "d/e/f/c": 3, "d2/x": 4, "d.x": 5, "dd": 6}
    for name, size in sizes.items():
        given.objects.put(given.name(name), [bytes(size)])
    for prefix in ("d/", "d/e/", ""):
        found = {info.name: info.size for info in given.objects.list(given.prefix + prefix)}
        wanted = {given.name(name): size for name, size in sizes.items() if name.startswith(prefix)}
        expect(found, wanted, f"the list of {prefix or 'everything'}")


@suite.check("nothing is listed where nothing is")
def _(given: Given) -> None:
    expect(list(given.objects.list(given.name("nowhere/"))), [], "the list")


@suite.check("a deleted object is gone, its neighbours are not, and it may come back")
def _(given: Given) -> None:
    for name in ("d/a", "d/b"):
        given.objects.put(given.name(name), [b"1"])
    given.objects.delete(given.name("d/a"))
    expect(given.objects.stat(given.name("d/a")), None, "what is said of it")
    expect(
        [info.name for info in given.objects.list(given.prefix)], [given.name("d/b")], "the list"
    )
    expect(given.objects.put(given.name("d/a"), [b"again"]), True, "the answer to another put")
    expect(given.all("d/a"), b"again", "the object")


@suite.check("deleting what is absent is fine")
def _(given: Given) -> None:
    given.objects.delete(given.name("absent"))
    given.objects.delete(given.name("no/such/folder"))


@suite.check("an object of many parts is the same bytes, and is read across them")
def _(given: Given) -> None:
    data = _pattern(given.large_bytes)
    given.objects.put(given.name("large"), _cut(data, 1 * MIB + 7))
    info = given.objects.stat(given.name("large"))
    expect(None if info is None else info.size, len(data), "its size")
    for at in (0, 5 * MIB - 3, 8 * MIB - 3, len(data) - 5):
        expect(
            given.objects.get(given.name("large"), at, 64 * KIB),
            data[at : at + 64 * KIB],
            f"what is at {at}",
        )
    expect(given.all("large") == data, True, "that the whole of it is right")


@suite.check("an object of many parts is not replaced either, unless that is asked for")
def _(given: Given) -> None:
    data = _pattern(given.large_bytes)
    given.objects.put(given.name("a"), [b"small"])
    expect(
        given.objects.put(given.name("a"), _cut(data, MIB)), False, "the answer to the second put"
    )
    expect(given.all("a"), b"small", "the object after it")
    expect(
        given.objects.put(given.name("a"), _cut(data, MIB), replace=True),
        True,
        "the answer to a replacing put",
    )
    expect(given.all("a") == data, True, "that the whole of it is right")


@suite.check("parts that raise leave nothing, and the error reaches the caller")
def _(given: Given) -> None:
    given.objects.put(given.name("there"), [b"as it was"])
    for name, size in (("small", 100), ("large", given.large_bytes), ("there", given.large_bytes)):

        def parts(size: int = size) -> Iterator[bytes]:
            yield from _cut(_pattern(size), MIB)
            raise _TestError

        put = partial(given.objects.put, given.name(name), parts(), replace=True)
        expect_raises(_TestError, put, f"storing the object '{name}'")
    expect(given.objects.stat(given.name("small")), None, "what is there of the small object")
    expect(given.objects.stat(given.name("large")), None, "what is there of the large object")
    expect(given.all("there"), b"as it was", "what was to be replaced")
    names = [info.name for info in given.objects.list(given.prefix)]
    expect(names, [given.name("there")], "the list")


@suite.check("nobody sees a part of an object that is being stored")
def _(given: Given) -> None:
    seen: set[int | None] = set()

    def parts() -> Iterator[bytes]:
        for part in _cut(_pattern(given.large_bytes), 2 * MIB):
            info = given.objects.stat(given.name("a"))
            seen.add(None if info is None else info.size)
            yield part

    given.objects.put(given.name("a"), parts())
    expect(seen, {None}, "what was seen of it meanwhile")


@suite.check("of several who store one name at once one wins, and its object is whole")
def _(given: Given) -> str | None:
    must_refuse = given.objects.refuses(given.name("refused"))
    contents = [b"%d" % number * 100_000 for number in range(_WRITERS)]
    with ThreadPoolExecutor(_WRITERS) as pool:
        puts = [pool.submit(given.objects.put, given.name("a"), [content]) for content in contents]
        won = [put.result() for put in puts]
    found = given.all("a")
    if found not in contents:
        fail(f"the object of {len(found)} bytes is none of those that were stored")
    if won.count(True) == 0:
        fail("all were told that there is one already")
    if won.count(True) > 1 and must_refuse:
        fail(
            f"it refuses to replace, but {won.count(True)} of {_WRITERS} were told that they had won"
        )
    if won.count(True) > 1 or not must_refuse:
        return (
            f"{won.count(True)} of {_WRITERS} were told that they had won: this store does not refuse by itself, and "
            "is not for brokers without a disk"
        )
    expect(found, contents[won.index(True)], "the object that is there")
    return None


@suite.check("threads write, read, list and delete at once")
def _(given: Given) -> None:
    def work(number: int) -> None:
        for turn in range(3):
            name = given.name(f"d{number % 2}/{number}-{turn}")
            given.objects.put(name, [b"%d" % number * 1000])
            expect(given.objects.get(name, 0, 5), (b"%d" % number * 1000)[:5], f"the object {name}")
            listed = {info.name for info in given.objects.list(given.prefix)}
            expect(name in listed, True, f"that {name} is listed")
            given.objects.delete(name)

    with ThreadPoolExecutor(_WRITERS) as pool:
        for done in [pool.submit(work, number) for number in range(_WRITERS)]:
            done.result()
    expect(list(given.objects.list(given.prefix)), [], "what is left")


@suite.check("names have letters, digits and some signs, and may be long")
def _(given: Given) -> None:
    names = ["ABC/abc/0189", "a-b_c.d~e/x+y=z,1", "n" * 200, "/".join("deep" for _ in range(20))]
    for name in names:
        given.objects.put(given.name(name), [name.encode()])
    for name in names:
        expect(given.all(name), name.encode(), f"the object {name}")
    found = sorted(info.name for info in given.objects.list(given.prefix))
    expect(found, sorted(given.name(name) for name in names), "the list")


@suite.check("names that some store does not take are InvalidArgument to all")
def _(given: Given) -> None:
    for name in _BAD_NAMES:
        put = partial(given.objects.put, name, [b"1"])
        expect_raises(InvalidArgument, put, f"storing {name!r}")
        expect_raises(InvalidArgument, partial(given.objects.get, name, 0, 1), f"reading {name!r}")
    expect_raises(
        InvalidArgument, lambda: list(given.objects.list("no/slash")), "the list of 'no/slash'"
    )


@suite.check("the address is told")
def _(given: Given) -> None:
    expect("://" in given.objects.url, True, f"that {given.objects.url!r} has a scheme")


def _pattern(size: int) -> bytes:
    """Bytes that are different at every place."""
    return array("Q", range(size // 8)).tobytes() + bytes(size % 8)


def _cut(data: bytes, size: int) -> Iterable[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))
