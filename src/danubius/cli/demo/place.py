"""The place where a demo works: a folder that is its own, and what must be installed.

Invariant: a folder that no demo made is never touched. One that a demo made is emptied by the next, so there is never
more than one demo's worth of files; a demo that does not come to its end leaves none.
"""

from __future__ import annotations

import fcntl
import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Self

from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

MARK: Final = ".danubius-demo"
_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "deltalake")
_WITHOUT: Final = "the broker alone is shown by: danubius demo --engine"


def check_installed() -> None:
    """Spark, its tables and Java, before anything is started; the sentence says how to get what is missing."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise InvalidArgument(
            f"the demo runs on Spark and needs {', '.join(missing)}: pip install 'danubius[broker,spark,tables]'"
            f" ({_WITHOUT})"
        )
    from danubius.spark.cluster.sessions import use_java

    try:
        use_java()
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message} ({_WITHOUT})") from None


class Place:
    """The demo's folder, for as long as it runs."""

    def __init__(self, folder: Path) -> None:
        self.shown = folder
        """As it was given: what a person types."""
        self.folder = folder.absolute()
        self._mark: IO[bytes] | None = None
        self._is_kept = False

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def broker(self) -> Path:
        return self.folder / "broker"

    def keep(self) -> None:
        """What is there stays."""
        self._is_kept = True

    def __enter__(self) -> Self:
        mark = self.folder / MARK
        if self.folder.is_dir() and any(self.folder.iterdir()) and not mark.is_file():
            raise InvalidArgument(
                f"{self.shown} has files that no demo made: give another folder with --dir"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._mark = mark.open("ab")
        try:
            fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._mark.close()
            raise InvalidArgument(
                f"another demo runs in {self.shown}: give another folder with --dir"
            ) from None
        for each in self.folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            elif each.name != MARK:
                each.unlink()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._mark is not None
        self._mark.close()
        if not self._is_kept:
            shutil.rmtree(self.folder, ignore_errors=True)
