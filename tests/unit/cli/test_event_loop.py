"""Commands on their event loop: signals end them at any moment, and nothing else is said."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from danubius.cli import event_loop
from danubius.cli.event_loop import run_async

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stopped(BaseException):
    """What the handler of a command raises."""


@pytest.fixture
def stops_at_sigterm() -> Iterator[None]:
    """With another thread beside, which the kernel may give the signal to."""
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()

    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)
    ended.set()
    other.join()


async def _forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.usefixtures("stops_at_sigterm")
def test_a_signal_while_the_loop_is_made_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    new = uvloop.new_event_loop
    made: list[Any] = []

    def interrupted() -> Any:
        loop = new()
        made.append(loop.is_closed)
        os.kill(os.getpid(), signal.SIGTERM)
        return loop

    monkeypatch.setattr(event_loop, "_loop_factory", lambda: interrupted)
    with caplog.at_level(logging.DEBUG), pytest.raises(Stopped):
        run_async(_forever)
    (is_closed,) = made
    assert is_closed()
    assert not caplog.records


@pytest.mark.usefixtures("stops_at_sigterm")
def test_a_signal_while_it_runs_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    async def stopped() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await _forever()

    with caplog.at_level(logging.DEBUG), pytest.raises(Stopped):
        run_async(stopped)
    assert not caplog.records


@pytest.mark.usefixtures("stops_at_sigterm")
@pytest.mark.filterwarnings("error")
def test_a_signal_while_the_coroutine_is_made_leaves_none_unawaited(
    recwarn: pytest.WarningsRecorder,
) -> None:
    def interrupted() -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return _forever()

    with pytest.raises(Stopped):
        run_async(interrupted)
    gc.collect()
    assert not recwarn.list


def test_its_answer_is_the_commands() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert run_async(answer) == 42
