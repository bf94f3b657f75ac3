"""A front of its own over a service of a test's own: how it refuses, stalls, dies and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from danubius.edge.grpc.frames import Open
from danubius.edge.grpc.front_process import Front
from danubius.edge.grpc.messages import danube
from danubius.edge.grpc.pulse import MISSED_MAX
from danubius.edge.grpc.relay import HIGH_WATER_BYTES
from danubius.edge.grpc.servicer import Servicer
from danubius.edge.grpc.switchboard import Switchboard
from danubius.errors import InvalidArgument
from e2e.grpc_loop import on_grpc_loop
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from danubius.edge.grpc.frames import Bound

HEALTH = danube.service("HealthCheck")
CONSUMERS = danube.service("ConsumerService")


class Hourglass:
    """Time as a front has it: some passes when it is turned, and only then."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None
        self._begun = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        assert seconds > 0
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        self._begun.set()
        await waiting

    async def turn(self) -> None:
        """End a pause, once there is one."""
        await self._begun.wait()
        self._begun.clear()
        assert self._waiting is not None
        self._waiting.set_result(None)


class Bench:
    """A front, its switchboard and a channel to it."""

    def __init__(self, front: Front, board: Switchboard, bound: Bound, channel: Any) -> None:
        self.front = front
        self.board = board
        self.bound = bound
        self._channel = channel

    async def ask(self) -> Any:
        """One unary call."""
        method = HEALTH.methods_by_name["HealthCheck"]
        call = self._channel.unary_unary(
            f"/{HEALTH.full_name}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return await call(danube.HealthCheckRequest(), timeout=HANG_S)

    def stream(self) -> Any:
        call = self._channel.unary_stream(
            f"/{CONSUMERS.full_name}/ReceiveMessages",
            request_serializer=danube.ReceiveRequest.SerializeToString,
            response_deserializer=danube.StreamMessage.FromString,
        )
        return call(danube.ReceiveRequest(), timeout=HANG_S)


@asynccontextmanager
async def serving(*servicers: Servicer, pause: Any = asyncio.sleep) -> AsyncGenerator[Bench]:
    front = Front("info", "text", pause)
    board = Switchboard(servicers, ())
    try:
        bound = await front.bind(Open("127.0.0.1", 0, 0))
        front.serve(board)
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.http2.bdp_probe", 0),  # the connection itself holds no more than it must
        ]
        async with aio.insecure_channel(f"127.0.0.1:{bound.port}", options) as channel:
            yield Bench(front, board, bound, channel)
    finally:
        await front.close()
        await board.close(HANG_S)


async def well(request: Any, context: Any) -> Any:
    del request, context
    return danube.HealthCheckResponse(status="OK")


async def test_new_calls_are_refused_as_unavailable_and_old_ones_answered() -> None:
    await on_grpc_loop(refuse_while_one_is_under_way())


async def refuse_while_one_is_under_way() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def check(request: Any, context: Any) -> Any:
        began.set()
        await go_on.wait()
        return await well(request, context)

    async with (
        serving(Servicer(HEALTH, {"HealthCheck": check})) as bench,
        asyncio.TaskGroup() as tasks,
    ):
        under_way = tasks.create_task(bench.ask())
        await began.wait()
        bench.board.refuse()
        with pytest.raises(aio.AioRpcError, match="stopping") as refused:
            await bench.ask()
        go_on.set()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert under_way.result().status == 0


async def test_a_call_whose_client_leaves_is_cancelled() -> None:
    await on_grpc_loop(leave_while_one_is_under_way())


async def leave_while_one_is_under_way() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def check(request: Any, context: Any) -> Any:
        began.set()
        try:
            await asyncio.sleep(HANG_S)
        finally:
            ended.set()

    async with serving(Servicer(HEALTH, {"HealthCheck": check})) as bench, asyncio.timeout(HANG_S):
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(bench.ask())
            await began.wait()
            asking.cancel()
        await ended.wait()
        assert len(bench.board) == 0


async def test_what_is_a_bug_of_the_broker_is_answered_as_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await on_grpc_loop(raise_in_methods())
    assert caplog.text.count("a gRPC request failed") == 3


async def raise_in_methods() -> None:
    async def slow(request: Any, context: Any) -> Any:
        raise ZeroDivisionError

    def quick(request: Any, call: Any) -> Any:
        raise ZeroDivisionError

    async def receive(request: Any, context: Any) -> None:
        await context.write(danube.StreamMessage())
        raise ZeroDivisionError

    for servicer in (
        Servicer(HEALTH, {"HealthCheck": slow}),
        Servicer(HEALTH, quick={"HealthCheck": quick}),
    ):
        async with serving(servicer) as bench:
            with pytest.raises(aio.AioRpcError, match="its log says how") as refused:
                await bench.ask()
            assert refused.value.code() is grpc.StatusCode.INTERNAL
    async with serving(Servicer(CONSUMERS, streams={"ReceiveMessages": receive})) as bench:
        stream = bench.stream()
        assert await stream.read() == danube.StreamMessage()
        assert await stream.code() is grpc.StatusCode.INTERNAL


async def test_a_stream_that_nobody_reads_holds_its_writer_up_and_loses_nothing() -> None:
    await on_grpc_loop(stall())


async def stall() -> None:
    count, payload = 2_000, bytes(10_000)
    written = 0

    async def receive(request: Any, context: Any) -> None:
        nonlocal written
        for number in range(count):
            await context.write(danube.StreamMessage(request_id=number, payload=payload))
            written += 1

    servicers = [
        Servicer(CONSUMERS, streams={"ReceiveMessages": receive}),
        Servicer(HEALTH, {"HealthCheck": well}),
    ]
    async with serving(*servicers) as bench:
        stream = bench.stream()
        assert (await stream.read()).request_id == 0
        before, still = -1, 0
        while still < 50:  # others are served meanwhile
            still = still + 1 if written == before else 0
            before = written
            await bench.ask()
        # What the two processes and the connection hold of 20 MB.
        assert written * len(payload) < 1_000_000
        for number in range(1, count):
            assert (await stream.read()).request_id == number
        assert await stream.read() is aio.EOF
    assert written == count


async def test_all_streams_together_wait_for_a_front_that_does_not_read() -> None:
    await on_grpc_loop(stall_the_front())


async def stall_the_front() -> None:
    streams_count, count, payload = 100, 10, bytes(20_000)
    go_on = asyncio.Event()
    written = 0

    async def receive(request: Any, context: Any) -> None:
        nonlocal written
        await context.write(danube.StreamMessage())
        await go_on.wait()
        for number in range(count):
            await context.write(danube.StreamMessage(request_id=number, payload=payload))
            written += len(payload)

    async with serving(Servicer(CONSUMERS, streams={"ReceiveMessages": receive})) as bench:
        streams = [bench.stream() for _ in range(streams_count)]
        for stream in streams:
            await stream.read()
        os.kill(bench.front.pid, signal.SIGSTOP)
        go_on.set()
        for _ in range(1_000):
            await asyncio.sleep(0)
        # Their windows alone would be more: what is on its way to the front, and in the kernel.
        assert HIGH_WATER_BYTES < written < HIGH_WATER_BYTES + 1_000_000
        os.kill(bench.front.pid, signal.SIGCONT)
        for stream in streams:
            got = [(await stream.read()).request_id for _ in range(count)]
            assert got == list(range(count))
            assert await stream.read() is aio.EOF


async def test_a_front_that_dies_ends_its_calls_and_comes_back_on_its_ports() -> None:
    await on_grpc_loop(die_and_come_back())


async def die_and_come_back() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def receive(request: Any, context: Any) -> None:
        began.set()
        try:
            await asyncio.sleep(HANG_S)
        finally:
            ended.set()

    servicers = [
        Servicer(CONSUMERS, streams={"ReceiveMessages": receive}),
        Servicer(HEALTH, {"HealthCheck": well}),
    ]
    glass = Hourglass()
    async with serving(*servicers, pause=glass.pause) as bench:
        stream = bench.stream()
        reading = asyncio.get_running_loop().create_task(stream.read())
        await began.wait()
        pid = bench.front.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(aio.AioRpcError) as lost:
            await reading
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
        await ended.wait()
        assert not bench.front.is_up
        await asyncio.to_thread(wait_until_dead, pid)
        # Somebody else has its port for a while.
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", bench.bound.port))
            other.listen()
            async with asyncio.timeout(HANG_S):
                with pytest.raises(InvalidArgument, match="--grpc-port"):
                    await try_to_bind(bench.bound)
            assert not bench.front.is_up
        async with asyncio.timeout(HANG_S):
            while not bench.front.restarts:
                await glass.turn()
        assert bench.front.restarts == 1
        assert (await bench.ask()).status == 0


async def test_a_front_that_hangs_is_killed_and_started_again() -> None:
    await on_grpc_loop(hang())


async def hang() -> None:
    glass = Hourglass()
    async with serving(Servicer(HEALTH, {"HealthCheck": well}), pause=glass.pause) as bench:
        assert (await bench.ask()).status == 0
        pid = bench.front.pid
        os.kill(pid, signal.SIGSTOP)
        turns = 0
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(fail(bench))
            while not bench.front.restarts:
                await glass.turn()
                turns += 1
        assert asking.result() is grpc.StatusCode.UNAVAILABLE
        assert turns > MISSED_MAX
        assert bench.front.pid not in (0, pid)
        assert (await bench.ask()).status == 0


async def fail(bench: Bench) -> Any:
    with pytest.raises(aio.AioRpcError) as lost:
        await bench.ask()
    return lost.value.code()


def wait_until_dead(pid: int) -> None:
    """Its connections end in some order before it does: the one to us perhaps before its ports."""
    with contextlib.suppress(ChildProcessError):  # its keeper was quicker
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def try_to_bind(bound: Bound) -> None:
    """A second front that is told the same ports."""
    front = Front("info", "text")
    try:
        await front.bind(Open("127.0.0.1", bound.port, bound.admin_port))
    finally:
        await front.close()
