"""Calls that the front has taken, brought to the methods that answer them.

What all methods share is written once here: a DanubiusError or Refused that one raises becomes the status of the
answer, a request that is no message of its type is INVALID_ARGUMENT, and a method that a servicer does not have is
FAILED_PRECONDITION with the servicer's sentence: nothing is UNIMPLEMENTED without one. An exception that is none of
ours is a bug: it is logged and answered INTERNAL. Invariants:
- Each call is answered once, unless its client or the front is gone first; then nothing is sent about it any more.
- A call whose client is gone is cancelled at once, and so are all when the front is.
- A stream writes no more than its window, and nothing while the front does not read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from danubius.edge.grpc import frames
from danubius.edge.grpc.frames import Method as Listed
from danubius.edge.grpc.frames import header
from danubius.edge.grpc.status import Code, Refused, status_of
from danubius.edge.grpc.window import SendWindow, cost_of
from danubius.errors import DanubiusError, InvalidArgument, ShuttingDown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.edge.grpc.frames import Frame
    from danubius.edge.grpc.relay import Relay
    from danubius.edge.grpc.servicer import Context, Method, Quick, Servicer, Stream

log = logging.getLogger(__name__)

_BUG: Final = Refused(Code.INTERNAL, "the broker failed; its log says how")
_STOPPING: Final = ShuttingDown("the broker is stopping; try again")


class _Entry(NamedTuple):
    """A method: how it is called, and how its requests and responses are read and written."""

    listed: Listed
    parse: Callable[[bytes], Any]
    input_name: str
    quick: Quick | None
    work: Method | Stream | None
    """If it is not quick."""


class Call:
    """One call that is under way."""

    __slots__ = ("_board", "_entry", "_number", "_peer", "_waiter", "_window", "is_over", "task")

    def __init__(self, board: Switchboard, number: int, entry: _Entry, peer: str) -> None:
        self._board = board
        self._number = number
        self._entry = entry
        self._peer = peer
        self._window = SendWindow() if entry.listed.is_stream else None
        self._waiter: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_over = False

    def peer(self) -> str:
        return self._peer

    async def write(self, response: Any) -> None:
        window = self._window
        assert window is not None, "only streams are written to"
        data = response.SerializeToString()
        while not (window.is_open and self._board.writable.is_set()):
            if window.is_open:
                await self._board.writable.wait()
            else:
                self._waiter = self._board.loop.create_future()
                await self._waiter
        if not self.is_over:
            window.take(cost_of(len(data)))
            self._board.send(header(frames.WRITE, len(data), 0, self._number), data)

    def credit(self, cost: int) -> None:
        """So much of what was written has gone out."""
        if self._window is None or not self._window.give(cost):
            return
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def answer(self, response: Any) -> None:
        """End it with a response."""
        if not self.is_over:
            self._finish()
            data = response.SerializeToString()
            self._board.send(header(frames.ANSWER, len(data), 0, self._number), data)

    def end(self) -> None:
        """End it, a stream that is complete."""
        if not self.is_over:
            self._finish()
            self._board.send(header(frames.END, 0, Code.OK, self._number))

    def fail(self, error: Exception) -> None:
        """End it with the status of an error."""
        if self.is_over:
            return
        self._finish()
        if isinstance(error, DanubiusError):
            code, message = status_of(error), error.message
        elif isinstance(error, Refused):
            code, message = error.code, error.message
        else:
            listed = self._entry.listed
            log.error(
                "a gRPC request failed",
                exc_info=error,
                extra={"method": f"{listed.service}/{listed.name}"},
            )
            code, message = _BUG.code, _BUG.message
        text = message.encode(errors="backslashreplace")
        self._board.send(header(frames.END, len(text), code, self._number), text)

    def _finish(self) -> None:
        self.is_over = True
        self._board.forget(self._number)

    async def run(self, request: Any) -> None:
        """Have it answered by a method that takes its time."""
        work = self._entry.work
        assert work is not None
        try:
            response = await work(request, self)
        except Exception as error:  # noqa: BLE001  # told to the client, or to the log
            self.fail(error)
        else:
            if self._window is not None:
                self.end()
            else:
                self.answer(response)


class Switchboard:
    """All calls of the edge."""

    def __init__(self, data: Sequence[Servicer], admin: Sequence[Servicer]) -> None:
        """What the two ports serve."""
        self.loop = asyncio.get_running_loop()
        self.writable = asyncio.Event()
        """Whether the front reads what is written."""
        self._entries: list[_Entry] = []
        self.served = frames.Serve(self._list(data), self._list(admin))
        self._relay: Relay | None = None
        self._calls: dict[int, Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_refusing = False

    def __len__(self) -> int:
        return len(self._calls)

    def _list(self, servicers: Sequence[Servicer]) -> tuple[Listed, ...]:
        before = len(self._entries)
        for servicer in servicers:
            self._entries += _entries(servicer, len(self._entries))
        return tuple(entry.listed for entry in self._entries[before:])

    # ------------------------------------------------------------ the front

    def connect(self, relay: Relay) -> None:
        """Calls come from here, and are answered there."""
        self._relay = relay
        self.writable.set()

    def disconnect(self) -> None:
        """The front is gone, and all its clients with it."""
        self._relay = None
        self.writable.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            _drop(call)

    def hear(self, is_writable: bool) -> None:
        """Whether the front keeps up with reading."""
        if is_writable:
            self.writable.set()
        else:
            self.writable.clear()

    def refuse(self) -> None:
        """Answer new calls with UNAVAILABLE, and those under way as ever: clients begin to wait.

        For what comes in while the server closes is CANCELLED, which clients hand to their applications.
        """
        self._is_refusing = True

    async def close(self, timeout_s: float) -> None:
        """End what is still under way, and wait for that."""
        self.disconnect()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def send(self, head: bytes, body: bytes = b"") -> None:
        if self._relay is not None:
            self._relay.send(head, body)

    def forget(self, number: int) -> None:
        self._calls.pop(number, None)

    # ------------------------------------------------------------ calls

    def take(self, frame: Frame) -> None:
        """A frame of the front about a call."""
        kind, number, call, body = frame
        if kind == frames.CALL:
            self._begin(call, self._entries[number], "", body)
        elif kind == frames.CALL_FROM:
            peer, request = frames.split_peer(body)
            self._begin(call, self._entries[number], peer, request)
        elif kind == frames.CREDIT:
            found = self._calls.get(call)
            if found is not None:
                found.credit(number)
        elif kind == frames.CANCEL:
            found = self._calls.pop(call, None)
            if found is not None:
                _drop(found)

    def _begin(self, number: int, entry: _Entry, peer: str, body: bytes) -> None:
        call = self._calls[number] = Call(self, number, entry, peer)
        if self._is_refusing:
            call.fail(_STOPPING)
            return
        try:
            request = entry.parse(body)
        except DecodeError as error:
            call.fail(InvalidArgument(f"the request is not a {entry.input_name}: {error}"))
            return
        if entry.quick is None:
            call.task = self.loop.create_task(call.run(request))
            self._tasks.add(call.task)
            call.task.add_done_callback(self._tasks.discard)
            return
        try:
            response = entry.quick(request, call)
        except Exception as error:  # noqa: BLE001  # told to the client, or to the log
            call.fail(error)
        else:
            if response is not None:
                call.answer(response)


def _drop(call: Call) -> None:
    call.is_over = True
    if call.task is not None:
        call.task.cancel()


def _entries(servicer: Servicer, first: int) -> list[_Entry]:
    """The methods of a service, numbered from `first`."""
    return [
        _entry(servicer, descriptor, number)
        for number, descriptor in enumerate(servicer.service.methods, first)
    ]


def _entry(servicer: Servicer, descriptor: Any, number: int) -> _Entry:
    name = descriptor.name
    stream, quick = servicer.streams.get(name), servicer.quick.get(name)
    listed = Listed(
        number,
        servicer.service.full_name,
        name,
        is_stream=stream is not None,
        wants_peer=name in servicer.asking_peer,
    )
    work = stream or servicer.methods.get(name)
    if work is None and quick is None:
        work = _refuse(servicer, name)
    parse = GetMessageClass(descriptor.input_type).FromString
    return _Entry(listed, parse, descriptor.input_type.full_name, quick, work)


def _refuse(servicer: Servicer, name: str) -> Method:
    async def refuse(request: Any, context: Context) -> Any:
        del request, context
        raise Refused(Code.FAILED_PRECONDITION, f"{name}: {servicer.refusal}")

    return refuse
