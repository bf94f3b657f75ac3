"""Privacy of what we write: its owner alone may read it. Messages, positions and credentials are in these files.

Everything that is made here is its owner's alone, whatever the umask would allow. What is there already is left as it
is: whoever opened a directory to others may have meant it, so that is said, and not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_OTHERS: Final = 0o077


def make_directories(path: Path) -> list[Path]:
    """Make a directory and its absent parents, all of them private; returns those that were absent, the last first."""
    absent = [level for level in (path, *path.parents) if not level.exists()]
    for level in reversed(absent):
        level.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    if not absent and not path.is_dir():
        path.mkdir()  # raises as it would for anybody
    return absent


def is_open_to_others(path: Path) -> bool:
    """Whether other users of this machine may look into a directory; False if there is none."""
    try:
        return bool(path.stat().st_mode & _OTHERS)
    except OSError:
        return False
