"""The gRPC front as the broker owns it: started, listened to, started again when it dies, ended.

The front is a process of its own (`danubius.edge.grpc.front`) on the other end of a socket pair. Invariants:
- It never outlives the broker: the socket's end is its end, and the kernel ends it with its parent.
- While it is not there its clients' calls are not either: they are cancelled when the socket ends.
- Its ports stay the same for as long as the broker lives, whichever were picked first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from danubius.edge.grpc import frames
from danubius.edge.grpc.frames import header
from danubius.edge.grpc.pulse import Pulse
from danubius.edge.grpc.relay import Relay
from danubius.errors import BrokerUnavailable, DanubiusError, InvalidArgument
from danubius.runtime.processes import standing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from typing import Any

    from danubius.edge.grpc.frames import Bound, Frame, Open
    from danubius.edge.grpc.switchboard import Switchboard

    Pause = Callable[[float], Coroutine[Any, Any, None]]

START_S: Final = 120.0
"""From the start of the process until it has its ports, for one that neither gets there nor ends."""
END_S: Final = 10.0
"""Beyond the grace of calls under way, until it is killed; and for the kernel to end one that was."""
AGAIN_S: Final = 0.1
"""Before a front that died is started again; twice as long each time,"""
AGAIN_MAX_S: Final = 10.0
"""but no longer than this,"""
STEADY_S: Final = 30.0
"""and from the beginning after it has lived for so long."""
PING_S: Final = 5.0
"""How often it is asked whether it is alive; pulse.py says how many answers may be missed."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Of a terminal or a supervisor, to all processes at once: the broker acts on them, and ends the front."""

log = logging.getLogger(__name__)


class _Life:
    """One process, from its start to its end."""

    def __init__(self, level: str, log_format: str) -> None:
        """Start it; it makes itself ready while others do something else."""
        try:
            with contextlib.ExitStack() as unless_started:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                unless_started.enter_context(ours)
                with theirs:
                    self.process = _start(theirs.fileno(), level, log_format)
                unless_started.pop_all()
        except OSError as error:
            raise BrokerUnavailable(
                f"the gRPC front cannot be started: {error.strerror}"
            ) from error
        self._socket = ours
        self.ended = asyncio.Event()
        self._bound: asyncio.Future[Bound] = asyncio.get_running_loop().create_future()
        self._board: Switchboard | None = None
        self._relay: Relay | None = None
        self._pulse = Pulse()

    async def bind(self, asked: Open) -> Bound:
        """Have it take its ports; returns the real ones."""
        try:
            async with asyncio.timeout(START_S):
                relay = self._relay = Relay(self._hear, self._closed, self._written)
                loop = asyncio.get_running_loop()
                self._socket.setblocking(False)
                await loop.create_unix_connection(lambda: relay, sock=self._socket)
                body = frames.encode_struct(asked)
                relay.send(header(frames.OPEN, len(body)), body)
                return await self._bound
        except TimeoutError:
            raise BrokerUnavailable(
                f"the gRPC front was not ready within {START_S:.0f} s"
            ) from None

    def serve(self, board: Switchboard) -> None:
        """Let clients in."""
        assert self._relay is not None
        self._board = board
        board.connect(self._relay)
        body = frames.encode_struct(board.served)
        self._relay.send(header(frames.SERVE, len(body)), body)

    async def stop(self, grace_s: float) -> None:
        """End it, with some time for calls that are under way."""
        if self._board is not None and self._relay is not None and not self.ended.is_set():
            self._relay.send(header(frames.STOP, 0, int(grace_s * 1000)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s + END_S):
                    await self.ended.wait()
        await self.end()

    async def end(self) -> int | None:
        """End it now, if it has not; returns its exit code, None if it does not end."""
        if self._relay is not None:
            self._relay.abort()
        else:
            self._socket.close()
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, END_S)
        return self.process.returncode

    async def watch(self, pause: Pause) -> None:
        """Until it has ended, by itself or because it no longer answers."""
        assert self._relay is not None
        loop = asyncio.get_running_loop()
        ending = loop.create_task(self.ended.wait())
        pausing: asyncio.Future[None] | None = None
        try:
            while True:
                self._relay.send(header(frames.PING))
                pausing = loop.create_task(pause(PING_S))
                await asyncio.wait((ending, pausing), return_when=asyncio.FIRST_COMPLETED)
                if ending.done():
                    return
                if self._pulse.tick(*standing(self.process.pid)):
                    log.warning("the gRPC front does not answer and is killed")
                    return
        finally:
            ending.cancel()
            if pausing is not None:
                pausing.cancel()

    def _hear(self, frame: Frame) -> None:
        if frame.kind == frames.PING:
            self._pulse.answered()
        elif self._board is not None:
            self._board.take(frame)
        elif self._bound.done():
            pass
        elif frame.kind == frames.BOUND:
            self._bound.set_result(frames.decode_bound(frame.body))
        elif frame.kind == frames.FAILED:
            self._bound.set_exception(InvalidArgument(frame.body.decode(errors="replace")))

    def _closed(self) -> None:
        self.ended.set()
        if not self._bound.done():
            self._bound.set_exception(
                BrokerUnavailable("the gRPC front ended before it was ready; the log says why")
            )
        if self._board is not None:
            self._board.disconnect()

    def _written(self, is_writable: bool) -> None:
        if self._board is not None:
            self._board.hear(is_writable)


class Front:
    """The front, over all its lives."""

    def __init__(self, log_level: str, log_format: str, pause: Pause = asyncio.sleep) -> None:
        """Start it now, so that it is ready when the broker is; `pause` is how it waits for a time to pass."""
        self._log = (log_level, log_format)
        self._pause = pause
        self._life = _Life(*self._log)
        self._keeper: asyncio.Task[None] | None = None
        self._asked: Open
        self._board: Switchboard
        self.up = asyncio.Event()
        """Set while it serves."""
        self.restarts = 0

    @property
    def is_up(self) -> bool:
        return self.up.is_set() and not self._life.ended.is_set()

    @property
    def pid(self) -> int:
        """Of the process; 0 while there is none."""
        return self._life.process.pid if self.is_up else 0

    async def bind(self, asked: Open) -> Bound:
        """Take the ports; InvalidArgument if one of them is another's."""
        bound = await self._life.bind(asked)
        self._asked = frames.Open(asked.host, bound.port, bound.admin_port)
        return bound

    def serve(self, board: Switchboard) -> None:
        """Let clients in, from now until `close`."""
        self._board = board
        self._life.serve(board)
        self.up.set()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def close(self, grace_s: float = 0.0) -> None:
        """End it; calls under way have `grace_s`."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self.up.clear()
        await self._life.stop(grace_s)

    async def _keep(self) -> None:
        """Start it again whenever it dies."""
        loop = asyncio.get_running_loop()
        wait_s = AGAIN_S
        while True:
            began_s = loop.time()
            await self._life.watch(self._pause)
            self.up.clear()
            code = await self._life.end()
            lived_s = loop.time() - began_s
            log.warning(
                "the gRPC front died and is started again",
                extra={"code": code, "lived_s": round(lived_s, 1)},
            )
            if lived_s >= STEADY_S:
                wait_s = AGAIN_S
            while not self.up.is_set():
                await self._pause(wait_s)
                wait_s = min(wait_s * 2, AGAIN_MAX_S)
                await self._start_again()

    async def _start_again(self) -> None:
        """One attempt."""
        try:
            self._life = _Life(*self._log)
            await self._life.bind(self._asked)
        except DanubiusError as error:
            log.warning("the gRPC front does not start", extra={"why": error.message})
            await self._life.end()
            return
        self._life.serve(self._board)
        self.up.set()
        self.restarts += 1
        log.info("clients of Danube are served again", extra={"pid": self.pid})


def _start(descriptor: int, *arguments: str) -> subprocess.Popen[bytes]:
    with _signals_blocked():
        return subprocess.Popen(  # noqa: S603  # this interpreter, our own module
            [sys.executable, "-P", "-m", "danubius.edge.grpc.front", str(descriptor), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            env=_environment(),
        )


@contextlib.contextmanager
def _signals_blocked() -> Generator[None]:
    """A process that is started here never gets them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    """The child finds the modules where this process found them, and its gRPC library does not write past our log.

    Few arenas: what gRPC's threads have freed in one of them is of no use to the others, and stays with the process.
    """
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {"GRPC_VERBOSITY": "NONE", "MALLOC_ARENA_MAX": "2", **os.environ, "PYTHONPATH": path}
