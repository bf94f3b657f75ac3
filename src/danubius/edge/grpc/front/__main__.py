"""`python -m danubius.edge.grpc.front SOCKET LEVEL FORMAT`: started by a broker, and by nobody else.

It does what the broker tells it over the socket that it was given, and ends when that ends: at once, for its ports must
be free for the next broker. Signals are the broker's business: it has them blocked before this process begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from danubius.edge.grpc import frames
from danubius.edge.grpc.frames import header
from danubius.edge.grpc.front.serving import Ports, PortTaken
from danubius.edge.grpc.relay import Relay
from danubius.runtime.logs import set_up_logging

if TYPE_CHECKING:
    from danubius.edge.grpc.frames import Frame

log = logging.getLogger("danubius.edge.grpc.front")

_PR_SET_PDEATHSIG: Final = 1


class Front:
    """What is done for each frame of the broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.relay = Relay(self._hear, self._gone)
        self._ports = Ports(self.relay)

    def _hear(self, frame: Frame) -> None:
        if frame.kind == frames.OPEN:
            self._begin(self._open(frames.decode_open(frame.body)))
        elif frame.kind == frames.SERVE:
            self._begin(self._ports.serve(frames.decode_serve(frame.body)))
        elif frame.kind == frames.STOP:
            self._begin(self._stop(frame.number / 1000))
        elif frame.kind == frames.PING:
            self.relay.send(header(frames.PING))
        else:
            self._ports.hear(frame)

    def _begin(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("the gRPC front failed", exc_info=task.exception())
            leave(1)

    async def _open(self, asked: frames.Open) -> None:
        try:
            body = frames.encode_struct(await self._ports.bind(asked))
            self.relay.send(header(frames.BOUND, len(body)), body)
        except PortTaken as taken:
            body = str(taken).encode()
            self.relay.send(header(frames.FAILED, len(body)), body)

    async def _stop(self, grace_s: float) -> None:
        await self._ports.stop(grace_s)
        self.relay.close()

    def _gone(self) -> None:
        """The broker has ended, or has said all it had to say."""
        leave(0)


def leave(code: int) -> NoReturn:
    """End now: what there is to tidy up is the broker's, and a port that is held a moment longer keeps that out."""
    logging.shutdown()
    os._exit(code)


def failed(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback raised: the broker starts another front."""
    error = context.get("exception")
    if isinstance(error, BlockingIOError):
        return  # grpc's own poller reads from a socket that two events announced
    log.critical("unexpected error", exc_info=error, extra={"where": context.get("message", "")})
    if isinstance(error, Exception):
        leave(1)


async def run(descriptor: int) -> None:
    """Serve until the broker ends."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(failed)
    front = Front(loop)
    await loop.create_unix_connection(lambda: front.relay, sock=socket.socket(fileno=descriptor))
    await loop.create_future()  # _gone ends the process


def die_with_the_broker() -> None:
    """Have the kernel end this process with its parent, also while the loop is too busy to see that the socket ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _loop_factory() -> Any:  # uvloop has no type of its own for it
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def main() -> None:
    descriptor, level, log_format = sys.argv[1:]
    set_up_logging(level, log_format)
    die_with_the_broker()
    # grpc's poller is a thread of its own: it must not wait 5 ms for its turn.
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run(int(descriptor)))


if __name__ == "__main__":
    main()
