"""Every shell example of README, docs and help can be pasted: bash reads it as meant, and the command takes it."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import pytest

from danubius.cli.root import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[3]
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = {"", "sh", "bash", "shell", "console"}
_COMMAND = re.compile(r"^(?:\$ |  )?(?:[A-Z_]+=\S+ )*(?:danubius|curl|pip|make|docker) ")
_END = re.compile(r"[|;&<>()]+")
_OPEN_ENDED = re.compile(r"[…<>]|\.\.\.")
"""Of an example that leaves something out."""


class Example(NamedTuple):
    """One command as somebody would paste it."""

    where: str
    text: str


def _joined(block: str) -> Iterator[str]:
    """The commands of a block, lines that go on joined."""
    lines = iter(block.replace("\\\n", " ").splitlines())
    for line in lines:
        if _COMMAND.match(line):
            text = line.removeprefix("$ ").strip()
            # A quotation may go on over several lines.
            while text.split(" #")[0].count("'") % 2 and (more := next(lines, None)) is not None:
                text += "\n" + more
            yield text


def _of_pages() -> Iterator[Example]:
    for page in _PAGES:
        name = str(page.relative_to(_ROOT))
        for language, block in _FENCE.findall(page.read_text()):
            if language in _SHELL:
                yield from (Example(name, text) for text in _joined(block))


def _of_help(command: click.Command, path: str) -> Iterator[Example]:
    for text in (command.epilog, command.help):
        lines = re.sub(r"\n\s+\|", " |", text or "")
        yield from (Example(f"{path} --help", found) for found in _joined(lines))
        yield from (
            Example(f"{path} --help", found.rstrip(". "))
            for found in re.findall(r": (danubius .*)$", text or "", re.MULTILINE)
        )
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _of_help(inner, f"{path} {name}")


EXAMPLES = sorted({*_of_pages(), *_of_help(cli, "danubius")})


def _substitutes(text: str) -> bool:
    """Whether a shell would run what stands in backquotes."""
    outside = re.sub(r"'[^']*'|\\.", "", text.split(" #")[0])
    return "`" in outside


def _arguments(text: str) -> list[str]:
    """Of the first danubius of a line; empty if there is none."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[str] = []
    for token in lexer:
        if found and _END.fullmatch(token):
            break
        if found or token == "danubius":
            found.append(token)
    return found[1:]


def _parse(arguments: list[str]) -> None:
    command: click.Command = cli
    context = click.Context(cli, info_name="danubius")
    rest = list(arguments)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        inner = command.get_command(context, rest[0])
        if inner is None:
            raise click.UsageError(f"no command {rest[0]}")
        command, name = inner, rest.pop(0)
        context = click.Context(command, info_name=name, parent=context)
    if not isinstance(command, click.Group):
        command.make_context(context.info_name, rest, parent=context.parent)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 100
    assert {example.where for example in EXAMPLES} >= {"README.md", "docs/sql.md", "danubius sql --help"}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.where}: {e.text[:40]}")
def test_an_example_can_be_pasted(
    example: Example, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not _substitutes(example.text), example
    if _OPEN_ENDED.search(example.text) or not (arguments := _arguments(example.text)):
        return
    monkeypatch.chdir(tmp_path)
    for argument in arguments:
        if re.fullmatch(r"[\w-]+\.\w{2,4}", argument):
            (tmp_path / argument).touch()  # whoever has pasted it has such a file
    _parse(arguments)


def test_bash_reads_every_example() -> None:
    for example in EXAMPLES:
        done = subprocess.run(
            ["bash", "-n", "-c", example.text], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (example, done.stderr)


def test_no_query_in_a_text_is_in_double_quotes() -> None:
    found = [
        f"{page.relative_to(_ROOT)}: {line.strip()[:80]}"
        for page in _PAGES
        for line in page.read_text().splitlines()
        if re.search(r'danubius sql [^\'|]*"[^"]*`', line)
    ]
    assert found == []
