"""Commands of the command line, called in this process, as the tests of it need them."""

from __future__ import annotations

import contextlib
import io
import json
from typing import TYPE_CHECKING, Any

from danubius.cli import main
from e2e.broker_process import Exit

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


def call(broker: BrokerProcess, *arguments: str) -> Exit:
    """Run a command in this process: a process for each would take most of the time."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*arguments, "--url", broker.url])
    texts: list[str] = []
    for stream in (out, err):
        stream.flush()
        raw = stream.buffer
        assert isinstance(raw, io.BytesIO)
        texts.append(raw.getvalue().decode())
    return Exit(code, *texts)


def run(broker: BrokerProcess, *arguments: str) -> str:
    done = call(broker, *arguments)
    assert done.code == 0, done
    assert not done.stderr
    return done.stdout


def run_json(broker: BrokerProcess, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(broker, *arguments, "--json").splitlines()]
