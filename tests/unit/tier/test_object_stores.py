"""Every check of the suite for object stores, on drivers that need no server; and that wrong drivers do not pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest

from danubius.conformance.checks import report
from danubius.conformance.object_checks import Given, run_object_checks, suite
from danubius.errors import ObjectNotFound
from danubius.tier.file_objects import FileObjects
from danubius.tier.listed_objects import ListedObjects
from danubius.tier.memory_objects import MemoryObjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from danubius.model.buffers import Buffer
    from danubius.tier.objects import ObjectInfo, ObjectStore


@pytest.fixture(params=["memory", "files", "listed"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "memory":
            return MemoryObjects()
        case "files":
            return FileObjects(tmp_path / "objects")
        case _:
            return ListedObjects(MemoryObjects())


@pytest.mark.parametrize("sentence", [check.sentence for check in suite.checks])
def test_a_driver(objects: ObjectStore, sentence: str) -> None:
    [check] = [check for check in suite.checks if check.sentence == sentence]
    note = check.run(Given(objects, "check/"))
    if isinstance(objects, ListedObjects) and sentence.startswith("of several who store one name"):
        assert note is not None
        assert "does not refuse by itself" in note
    else:
        assert note is None


def test_the_suite_leaves_nothing_behind(tmp_path: Path) -> None:
    objects = FileObjects(tmp_path)
    objects.put("other", [b"1"])
    assert all(finding.is_good for finding in run_object_checks(objects, "suite/"))
    assert [info.name for info in objects.list("")] == ["other"]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


class Forgetful(MemoryObjects):
    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        return super().put(name, parts, replace=replace) if replace else True


class Replacing(MemoryObjects):
    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        return super().put(name, parts, replace=True)


class Committing(MemoryObjects):
    """Stores what it has when the parts raise, as a writer of OpenDAL does."""

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        taken: list[Buffer] = []
        try:
            taken.extend(parts)
        finally:
            done = super().put(name, taken, replace=replace)
        return done


class Strict(MemoryObjects):
    """Knows no short reads."""

    def get(self, name: str, at: int, count: int) -> bytes:
        data = super().get(name, at, count)
        if len(data) < count:
            raise ValueError("the range exceeds the object")
        return data


class Shifted(MemoryObjects):
    def get(self, name: str, at: int, count: int) -> bytes:
        return super().get(name, at + 1, count) if at else super().get(name, at, count)


class Shallow(MemoryObjects):
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return (info for info in super().list(prefix) if "/" not in info.name[len(prefix) :])


class Loose(MemoryObjects):
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return (info for info in super().list("") if info.name.startswith(prefix.rstrip("/")))


class Silent(MemoryObjects):
    def get(self, name: str, at: int, count: int) -> bytes:
        try:
            return super().get(name, at, count)
        except ObjectNotFound:
            return b""


class Keeping(MemoryObjects):
    def delete(self, name: str) -> None:
        pass


class Visible(MemoryObjects):
    """Shows an object while it is written."""

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        if not replace and self.stat(name) is not None:
            return False
        data = b""
        for part in parts:
            data += part
            super().put(name, [data], replace=True)
        return super().put(name, [data], replace=True)


class Wrongs:
    drivers: ClassVar[list[type[MemoryObjects]]] = [
        Forgetful, Replacing, Committing, Strict, Shifted, Shallow, Loose, Silent, Keeping, Visible,
    ]  # fmt: skip


@pytest.mark.parametrize("driver", Wrongs.drivers)
def test_a_wrong_driver_does_not_pass(driver: type[MemoryObjects]) -> None:
    lines: list[str] = []
    assert not report(run_object_checks(driver(), "suite/", large_bytes=1 << 20), lines.append)
    assert any(line.startswith("FAIL  ") for line in lines)
    assert "checks passed" in lines[-1]
    assert not lines[-1].startswith("all")
