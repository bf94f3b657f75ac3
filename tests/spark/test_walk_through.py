"""docs/walk-through.md: every command and every snippet, in its order, as a person would run them.

Shell blocks run in one folder; Python blocks run in one interpreter, as in a notebook. A block of text below them is
what they say, line by line, wherever blanks may be.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from e2e.broker_process import BrokerProcess, environment
from patience import HANG_S, PROGRAM_HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "walk-through.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STANDALONE = "danubius standalone --data-dir broker\n"
ADDRESS = "danube://127.0.0.1:6651"
KERNEL = """
import contextlib, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Java prints is no answer
names = {"__name__": "__main__"}
for line in sys.stdin:
    said, is_well = io.StringIO(), True
    with contextlib.redirect_stdout(said):
        try:
            exec(json.loads(line), names)
        except BaseException:
            traceback.print_exc(file=said)
            is_well = False
    print(json.dumps([is_well, said.getvalue()]), file=answers, flush=True)
"""


class Block(NamedTuple):
    language: str
    text: str


class Notebook:
    """One interpreter that is given one block after the other."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", KERNEL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env=env,
        )

    def run(self, code: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        is_well, said = json.loads(self._process.stdout.readline())
        assert is_well, f"{code}\n{said}"
        return said

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(HANG_S)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


def _blocks() -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(PAGE.read_text())]


def _words(line: str) -> str:
    return " ".join(line.split())


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A broker, a command `danubius`, and nothing else that is not on the page."""
    commands = tmp_path / "bin"
    commands.mkdir()
    command = commands / "danubius"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m danubius "$@"\n')
    command.chmod(0o755)
    broker = BrokerProcess(tmp_path / "page" / "broker").start()
    try:
        path = f"{commands}{os.pathsep}{os.environ['PATH']}"
        yield environment() | {"DANUBIUS_URL": broker.url, "PATH": path}
    finally:
        broker.kill()


def _shell(code: str, folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", code],
        capture_output=True,
        text=True,
        timeout=PROGRAM_HANG_S,
        cwd=folder,
        env=env,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_page_begins_with_a_broker() -> None:
    blocks = _blocks()
    assert blocks[0] == Block("sh", STANDALONE), "which this test starts with ports of its own"
    assert {block.language for block in blocks} == {"sh", "python", "text"}


@pytest.mark.prove
def test_every_step_says_what_the_page_says(tmp_path: Path, env: dict[str, str]) -> None:
    folder = tmp_path / "page"
    notebook = Notebook(folder, env)
    said = ""
    try:
        for language, text in _blocks()[1:]:
            if language == "python":
                said = notebook.run(text.replace(ADDRESS, env["DANUBIUS_URL"]))
            elif language == "sh":
                said = _shell(text, folder, env)
            else:
                lines = [_words(line) for line in said.splitlines()]
                for expected in map(_words, text.splitlines()):
                    assert any(expected in line for line in lines), f"{expected!r} in:\n{said}"
    finally:
        notebook.close()
