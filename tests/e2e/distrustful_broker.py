"""A broker with a bug on demand, run as a program: `distrustful_broker.py BUG DATA_DIR PORT HTTP_PORT`.

On SIGUSR1 the bug shows: `timer` is a callback of the loop that raises once, `commit` is one that raises at every
commit from then on, also while the process takes itself down.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from danubius.app.main import run_standalone
from danubius.app.options import StandaloneOptions
from danubius.app.standalone import Standalone
from danubius.shard.shard import Shard


class BugError(Exception):
    """What nobody expected."""


is_showing = False
start, on_committed = Standalone.start, Shard.on_committed


def show() -> None:
    global is_showing
    is_showing = True
    if sys.argv[1] == "timer":
        raise BugError("a callback raised")


async def start_with_bug(self: Standalone) -> None:
    await start(self)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, show)


def commit_with_bug(self: Shard, tokens: list[Any], end_position: int) -> None:
    if is_showing and sys.argv[1] == "commit":
        raise BugError("a commit raised")
    on_committed(self, tokens, end_position)


if __name__ == "__main__":
    Standalone.start = start_with_bug
    Shard.on_committed = commit_with_bug
    _, _, data_dir, port, http_port = sys.argv
    sys.exit(
        run_standalone(StandaloneOptions(Path(data_dir), port=int(port), http_port=int(http_port)))
    )
