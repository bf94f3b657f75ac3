"""Trace contexts from producer to consumer, with OpenTelemetry's own SDK and a real broker."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import danubius
import danubius.blocking
from danubius import tracing
from e2e.broker_process import environment
from e2e.traffic import take
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from e2e.broker_process import BrokerProcess

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module")
def provider() -> TracerProvider:
    """One for the process: OpenTelemetry takes no second."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)
    return provider


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    EXPORTER.clear()
    yield EXPORTER
    EXPORTER.clear()


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [found] = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


async def test_one_trace_from_who_sends_to_who_handles(
    broker: BrokerProcess, topic: str, spans: InMemorySpanExporter
) -> None:
    tracer = trace.get_tracer("test")
    async with (
        danubius.connect(broker.url, tracing=True) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="billing", start="earliest") as consumer,
    ):
        with tracer.start_as_current_span("order"):
            receipt = await producer.send(b"three cakes", attributes={"kind": "order"})
        message = await consumer.receive(HANG_S)
        with tracing.process(message, subscription="billing"):
            pass
        await consumer.ack(message)
    assert message.attributes["kind"] == "order"
    order, send = named(spans, "order"), named(spans, f"send {topic}")
    process = named(spans, f"process {topic}")
    assert send.parent is not None
    assert send.parent.span_id == ids(order)[1]
    assert process.parent is not None
    assert (process.parent.trace_id, process.parent.span_id) == ids(send)
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert send.attributes is not None
    assert dict(send.attributes) == {
        "messaging.system": "danubius",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.message.body.size": 11,
        "messaging.danubius.offset": receipt.offset,
    }
    assert process.attributes is not None
    assert process.attributes["messaging.destination.subscription.name"] == "billing"
    assert process.attributes["messaging.danubius.offset"] == receipt.offset


async def test_many_messages_are_one_span_and_a_batch_links_to_each_sender(
    broker: BrokerProcess, topic: str, spans: InMemorySpanExporter
) -> None:
    async with (
        danubius.connect(broker.url, tracing=True) as client,
        client.producer(topic) as producer,
    ):
        await producer.send_many([b"a", b"b", b"c"])
        await producer.send_many([b"d", b"e"], attributes=[{"x": "y"}, None])
        producer.send_nowait(b"f")
        await producer.flush()
        async with client.reader(topic, start="earliest", stop_at_end=True) as reader:
            messages = [message async for message in reader]
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            received = 0
            with trace.get_tracer("test").start_as_current_span("outer"):
                while received < 6:  # deliveries may be cut anywhere
                    batch = await consumer.receive_batch(HANG_S)
                    with tracing.process(batch):
                        received += len(batch)
                    await consumer.ack(batch)
    sends = [span for span in spans.get_finished_spans() if span.name == f"send {topic}"]
    assert [(span.attributes or {}).get("messaging.batch.message_count") for span in sends] == [
        3,
        2,
        None,
    ]
    parents = [message.attributes["traceparent"].split("-")[2] for message in messages]
    assert parents == [f"{ids(sends[n])[1]:016x}" for n in (0, 0, 0, 1, 1, 2)]
    assert messages[3].attributes["x"] == "y"
    linked: set[tuple[int, int]] = set()
    for process in [one for one in spans.get_finished_spans() if one.kind is SpanKind.CONSUMER]:
        assert process.parent is not None
        assert process.parent.span_id == ids(named(spans, "outer"))[1]
        linked |= {(link.context.trace_id, link.context.span_id) for link in process.links}
    assert linked == set(map(ids, sends))


async def test_a_context_of_its_own_is_kept_and_none_is_no_error(
    broker: BrokerProcess, topic: str, spans: InMemorySpanExporter
) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with (
        danubius.connect(broker.url, tracing=True) as client,
        danubius.connect(broker.url) as plain,
        client.producer(topic, name="traced") as producer,
        plain.producer(topic, name="plain") as other,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send(b"1", attributes={"traceparent": own})
        await other.send(b"2")
        first, second = await take(consumer, 2)
    assert first.attributes == {"traceparent": own}
    context = trace.get_current_span(tracing.context_of(first)).get_span_context()
    assert f"{context.span_id:016x}" == "b7ad6b7169203331"
    assert second.attributes == {}
    assert tracing.links_of(second) == []
    with tracing.process(second):
        pass
    assert named(spans, f"process {topic}").parent is None


async def test_partitioned_topics_are_traced_too(
    broker: BrokerProcess, topic: str, spans: InMemorySpanExporter
) -> None:
    async with danubius.connect(broker.url, tracing=True) as client:
        await client.admin.create_topic(topic, partitions=3)
        async with (
            client.producer(topic) as producer,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            await producer.send_many([b"%d" % n for n in range(9)])
            messages = await take(consumer, 9)
    assert len({message.attributes["traceparent"] for message in messages}) == 1
    assert {message.topic for message in messages} == {f"{topic}-part-{n}" for n in range(3)}
    named(spans, f"send {topic}")


async def test_transactions_carry_the_context_that_is_current(
    broker: BrokerProcess, topic: str, spans: InMemorySpanExporter
) -> None:
    async with (
        danubius.connect(broker.url, tracing=True) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        with trace.get_tracer("test").start_as_current_span("transform"):
            async with client.transaction() as transaction:
                await transaction.send(producer, b"1", attributes={"a": "b"})
                await transaction.send_many(producer, [b"2", b"3"])
        messages = await take(consumer, 3)
    parents = {message.attributes["traceparent"].split("-")[2] for message in messages}
    assert parents == {f"{ids(named(spans, 'transform'))[1]:016x}"}
    assert messages[0].attributes["a"] == "b"


def test_without_asyncio_the_context_is_that_of_the_caller(
    broker: BrokerProcess, topic: str, spans: InMemorySpanExporter
) -> None:
    with (
        danubius.blocking.connect(broker.url, tracing=True) as client,
        client.producer(topic) as producer,
        trace.get_tracer("test").start_as_current_span("caller"),
    ):
        producer.send(b"hello")
    send, caller = named(spans, f"send {topic}"), named(spans, "caller")
    assert send.parent is not None
    assert send.parent.span_id == ids(caller)[1]


async def test_what_fails_is_told_by_its_span(
    broker: BrokerProcess, topic: str, spans: InMemorySpanExporter
) -> None:
    async with (
        danubius.connect(broker.url, tracing=True) as client,
        client.producer(topic) as producer,
    ):
        with pytest.raises(danubius.MessageTooLarge):
            await producer.send(bytes(64 << 20))
        await producer.send(b"x")
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            message = await consumer.receive(HANG_S)
            with pytest.raises(ZeroDivisionError), tracing.process(message):
                raise ZeroDivisionError
    failed = [span for span in spans.get_finished_spans() if not span.status.is_ok]
    assert [(span.name, (span.attributes or {})["error.type"]) for span in failed] == [
        (f"send {topic}", "MessageTooLarge"),
        (f"process {topic}", "ZeroDivisionError"),
    ]
    assert all(span.status.status_code is StatusCode.ERROR for span in failed)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env=environment(),
        check=False,
    )


def test_who_does_not_trace_does_not_load_it(broker: BrokerProcess, topic: str) -> None:
    done = run_python(
        "import sys, danubius.blocking\n"
        f"with danubius.blocking.connect({broker.url!r}) as client:\n"
        f"    with client.producer({topic!r}) as producer: producer.send(b'x')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    assert done.returncode == 0, done.stderr


def test_who_lacks_it_is_told_what_to_install() -> None:
    done = run_python(
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import danubius\n"
        "try: danubius.connect(tracing=True)\n"
        "except danubius.InvalidArgument as error: print(error)\n"
        "try: danubius.tracing\n"
        "except ImportError as error: print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pip install 'danubius[tracing]'") == 2
