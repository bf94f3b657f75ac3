"""The pipelines that come with Danubius, by name: files in `pipelines/` of a checkout, or of the installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from danubius.pipeline.problems import InvalidPipeline, nearest

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_FOLDERS: Final = (_PACKAGE / "pipelines", _PACKAGE.parents[1] / "pipelines")


def names() -> list[str]:
    return sorted({file.stem for folder in _FOLDERS for file in folder.glob("*.toml")})


def find(name: str) -> Path:
    """The file of a ready-made pipeline; InvalidPipeline says which there are."""
    for folder in _FOLDERS:
        if (file := folder / f"{name}.toml").is_file():
            return file
    raise InvalidPipeline(f"{name} is no file, and no ready-made pipeline{nearest(name, names())}")


def resolve(file: Path) -> Path:
    """A path as it is; a bare word that is no file is the name of a ready-made pipeline."""
    is_word = len(file.parts) == 1 and not file.suffix
    return find(file.name) if is_word and not file.exists() else file
