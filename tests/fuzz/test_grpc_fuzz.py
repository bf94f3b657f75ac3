"""Two thousand malformed or senseless requests to every method of Danube's API, from a seed, against a live broker.

Each is answered with a status that means something, and a client beside them notices nothing.
"""

from __future__ import annotations

import asyncio
import collections
import random
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message_factory import GetMessageClass

import danubius
from e2e.danube_calls import Calls, all_methods, calling, describe
from e2e.traffic import bystander, numbered, payloads, read_all
from patience import SOON_S

if TYPE_CHECKING:
    from e2e.conftest import StartBroker

CASES: Final = 2_000
WORKERS: Final = 8
SEED: Final = 5_050

NUMBERS: Final = [
    0,
    1,
    2,
    3,
    7,
    255,
    1001,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
TEXTS: Final = [
    "",
    "/",
    "a",
    "default",
    "/fuzz/a",
    "/fuzz/b",
    "/fuzz/p",
    "/fuzz/p-part-0",
    "/fuzz/" + "x" * 300,
    "//t",
    "a/b/c",
    "/fuzz/with.dot",
    "ü\u2028",
    "\x00",
    "x" * 100_000,
]
SENSIBLE: Final = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.OUT_OF_RANGE,
}


class Mutator:
    """Makes requests, every one from the dice."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def make(self, method: str) -> bytes:
        kind = self.dice.randrange(6)
        if kind == 0:
            return self.dice.randbytes(self.dice.randrange(200))
        message = self.message(describe(method).input_type, 0)
        data = message.SerializeToString()
        if kind == 1 and data:
            return data[: self.dice.randrange(len(data))]
        if kind == 2 and data:
            flipped = bytearray(data)
            for _ in range(self.dice.randrange(1, 4)):
                flipped[self.dice.randrange(len(flipped))] ^= 1 << self.dice.randrange(8)
            return bytes(flipped)
        if kind == 3:
            return data + self.dice.randbytes(self.dice.randrange(1, 12))
        return data

    def message(self, descriptor: Any, depth: int) -> Any:
        """A message of this type with some of its fields, all of them of the right type."""
        made = GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if self.dice.random() < 0.25:
                continue
            count = self.dice.randrange(3) if field.is_repeated else 1
            for _ in range(count):
                self.fill(made, field, depth)
        return made

    def fill(self, made: Any, field: Any, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(made, field.name)[self.dice.choice(TEXTS)] = self.dice.choice(TEXTS)
        elif field.message_type is not None:
            inner = self.message(field.message_type, depth + 1)
            if field.is_repeated:
                getattr(made, field.name).append(inner)
            else:
                getattr(made, field.name).CopyFrom(inner)
        elif field.is_repeated:
            getattr(made, field.name).append(self.value(field))
        else:
            setattr(made, field.name, self.value(field))

    def value(self, field: Any) -> Any:
        kinds = {
            field.TYPE_STRING: lambda: self.dice.choice(TEXTS),
            field.TYPE_BYTES: lambda: self.dice.randbytes(self.dice.choice([0, 10, 70_000])),
            field.TYPE_BOOL: lambda: self.dice.random() < 0.5,
            field.TYPE_DOUBLE: lambda: self.dice.choice([0.0, -1.0, float("nan")]),
            field.TYPE_UINT32: lambda: self.dice.choice(NUMBERS) % 2**32,
            field.TYPE_INT32: lambda: self.dice.choice(NUMBERS) % 2**31,
            field.TYPE_ENUM: lambda: self.dice.randrange(5),
        }
        return kinds.get(field.type, lambda: self.dice.choice(NUMBERS))()


async def ask(calls: Calls, method: str, request: bytes) -> grpc.aio.AioRpcError | None:
    """Why it fails; of a stream, whether it begins with sense, for a good one never ends."""
    try:
        if describe(method).server_streaming:
            stream = calls.stream(method, request)
            try:
                async with asyncio.timeout(4 * SOON_S):
                    await stream.read()
            except TimeoutError:
                pass
            finally:
                stream.cancel()
        else:
            await calls.raw(method, request)
    except grpc.aio.AioRpcError as error:
        return error
    return None


async def test_senseless_requests_are_refused_with_sense(start_broker: StartBroker) -> None:
    broker = start_broker(grpc=True)
    topic = "/honest/t"
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await client.admin.create_namespace("fuzz")
        await producer.send_many(numbered(100))
    dice = random.Random(SEED)
    mutator = Mutator(dice)
    methods = all_methods()
    cases = [
        (method, mutator.make(method))
        for method in (methods[number % len(methods)] for number in range(CASES))
    ]
    counts: collections.Counter[grpc.StatusCode] = collections.Counter()

    async def work(mine: list[tuple[str, bytes]]) -> None:
        async with calling(broker.grpc_port) as data, calling(broker.admin_port) as admin:
            for method, request in mine:
                is_admin = method.split("/")[0].endswith("Admin")
                error = await ask(admin if is_admin else data, method, request)
                code = error.code() if error is not None else grpc.StatusCode.OK
                assert code in SENSIBLE, (method, error, request[:200])
                assert error is None or error.details(), f"{method} is refused without a word"
                counts[code] += 1

    async with bystander(broker.url, "/honest/other") as other, asyncio.TaskGroup() as tasks:
        for at in range(WORKERS):
            tasks.create_task(work(cases[at::WORKERS]))
        await other.check()
    assert sum(counts.values()) == CASES
    assert counts[grpc.StatusCode.OK] > CASES // 20, counts
    assert counts[grpc.StatusCode.INVALID_ARGUMENT] > CASES // 4, counts
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == numbered(100)
    broker.kill()
    await asyncio.to_thread(broker.start)
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == numbered(100)
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()
