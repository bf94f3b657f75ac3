"""A client stays its process's own: in a child it says so at once, and the parent's connection is not touched."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.record.batch import read_header
from danubius.wire.commands import Goodbye, Produce, Produced

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

ANSWER_S = 60.0
"""For what takes milliseconds: a child that is not heard of hangs."""

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def _in_child(work: Callable[[], str]) -> str:
    """What a forked child answers, or its error; it is killed if it does not."""
    heard, said = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            answer = work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent shall see it
            answer = f"{type(error).__name__}: {error}"
        os.write(said, answer.encode())
        os._exit(0)
    os.close(said)
    try:
        is_there = select.select([heard], [], [], ANSWER_S)[0]
        return os.read(heard, 65_536).decode() if is_there else "the child hangs"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(heard)


def _each(*calls: Callable[[], object]) -> str:
    """What each of them raises; nothing if it does not."""
    found: list[str] = []
    for call in calls:
        try:
            call()
        except danubius.ClientClosed as error:
            found.append(str(error))
        else:
            found.append("")
    return "\n".join(found)


def _serve_store(broker: ScriptedBroker) -> None:
    count = 0

    def produce(peer: Peer, frame: Frame) -> None:
        nonlocal count
        peer.send(Produced(count), frame.correlation_id)
        count += read_header(frame.payload).count

    broker.on[Produce] = produce


async def test_every_call_in_a_child_says_to_connect_there(broker: ScriptedBroker) -> None:
    _serve_store(broker)

    def work() -> str:
        with (
            danubius.blocking.connect(broker.url) as client,
            client.producer("/default/t") as producer,
            client.consumer("/default/t", subscription="s") as consumer,
        ):
            broker_loop.call_soon_threadsafe(broker.deliver, 0, [b"a", b"b"])
            message = consumer.receive(ANSWER_S)
            producer.send_nowait(b"the parent's")
            answers = _in_child(
                lambda: _each(
                    lambda: producer.send(b"x"),
                    lambda: producer.send_nowait(b"x"),
                    producer.flush,
                    lambda: consumer.receive(1),  # b, which the parent has in hand
                    lambda: consumer.receive_batch(1),
                    lambda: consumer.ack(message),
                    lambda: client.producer("/default/t"),
                    lambda: client.list_topics(),
                    lambda: client.admin.list_namespaces(),
                )
            )
            assert consumer.receive(ANSWER_S).payload == b"b"
            producer.send(b"still there")
        return answers

    broker_loop = asyncio.get_running_loop()
    answers = (await asyncio.to_thread(work)).splitlines()
    assert len(answers) == 9
    assert all("connect in the child" in answer for answer in answers), answers


async def test_closing_in_a_child_is_silent_and_leaves_the_parents_connection(
    broker: ScriptedBroker,
) -> None:
    _serve_store(broker)

    def work() -> tuple[str, int]:
        client = danubius.blocking.connect(broker.url)
        producer = client.producer("/default/t")

        def child() -> str:
            with client, producer:
                pass
            with danubius.blocking.connect(broker.url) as own, own.producer("/default/t") as mine:
                return f"sent at {mine.send(b'from the child').offset}"

        answer = _in_child(child)
        assert len(broker.commands(Goodbye)) == 1, "the child's own"
        offset = producer.send(b"from the parent").offset
        client.close()
        return answer, offset

    assert await asyncio.to_thread(work) == ("sent at 0", 1)


async def test_a_child_does_not_hold_the_parents_connection_open(broker: ScriptedBroker) -> None:
    def work() -> str:
        with danubius.blocking.connect(broker.url) as client:
            session = client._client._connections.home.session_or_none
            assert session is not None
            assert session._protocol is not None
            copy = Path(f"/proc/self/fd/{session._protocol._descriptor}")
            assert str(copy.readlink()).startswith("socket:")
            return _in_child(lambda: str(copy.readlink()))

    assert await asyncio.to_thread(work) == os.devnull


async def test_the_asyncio_client_says_the_same_in_a_child(broker: ScriptedBroker) -> None:
    _serve_store(broker)

    def child() -> str:
        async def use() -> str:
            answers: list[str] = []
            for call in (producer.send(b"x"), client.list_topics(), consumer.receive(1)):
                try:
                    await call
                except danubius.ClientClosed as error:
                    answers.append(str(error))
            return "\n".join(answers)

        asyncio._set_running_loop(None)  # as a program that forks outside of its loop
        return asyncio.run(use())

    async with (
        danubius.connect(broker.url) as client,
        client.producer("/default/t") as producer,
        client.consumer("/default/t", subscription="s") as consumer,
    ):
        await producer.send(b"before")
        answers = _in_child(child).splitlines()
        assert (await producer.send(b"after")).offset == 1
    assert len(answers) == 3, answers
    assert all("connect in the child" in answer for answer in answers)
