"""OpenTelemetry traces through a topic: the context of who sends travels in the attributes of the messages.

`danubius.connect(url, tracing=True)` makes producers that open a span for each call and put its context into what they
send (`traceparent` and `tracestate`, or whatever propagators the program has set). Who receives needs no setting: the
functions here read it. Nothing of this is imported, and nothing costs anything, unless it is asked for.

Names and attributes follow OpenTelemetry's conventions for messaging. A call that sends many messages is one span, and
all of them carry its context. A message that has a context of its own already keeps it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link as SpanLink
from opentelemetry.trace import SpanKind

from danubius.client.messages import Message
from danubius.client.producing.partitioned_producer import PartitionedProducer
from danubius.client.producing.producer import Producer
from danubius.client.producing.producer_lane import ProducerLane
from danubius.client.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from opentelemetry.trace import Span

    from danubius.client.messages import Receipt, Receipts, ReceivedBatch
    from danubius.client.options import (
        DeliverAfter,
        DeliverAfterMany,
        DeliverAtMany,
        TimeToLive,
    )

SYSTEM: Final = "danubius"
LINKS_MAX: Final = 128
"""Of one span; OpenTelemetry itself keeps no more unless told otherwise."""

_tracer: Final = trace.get_tracer(SYSTEM, VERSION)

# ---------------------------------------------------------------- who receives


def context_of(message: Message) -> Context:
    """The context that a message was sent in; an empty one if it carries none."""
    return propagate.extract(message.attributes, Context())


def links_of(received: Message | ReceivedBatch) -> list[SpanLink]:
    """Links to all that was sent in different contexts, at most LINKS_MAX."""
    carriers = [received.attributes] if isinstance(received, Message) else received.attributes
    links: dict[tuple[int, int], SpanLink] = {}
    for carrier in carriers:
        if not carrier:
            continue
        context = trace.get_current_span(propagate.extract(carrier, Context())).get_span_context()
        if context.is_valid:
            links.setdefault((context.trace_id, context.span_id), SpanLink(context))
            if len(links) == LINKS_MAX:
                break
    return list(links.values())


@contextmanager
def process(
    received: Message | ReceivedBatch, *, subscription: str | None = None
) -> Generator[Span]:
    """The span of handling what was received, linked to those that sent it.

    Of a single message, and outside of any other span, it goes on with the sender's trace.

    Example:
        async for message in consumer:
            with tracing.process(message, subscription="billing"):
                await handle(message)
            await consumer.ack(message)
    """
    facts = _facts("process", received.topic)
    if subscription is not None:
        facts["messaging.destination.subscription.name"] = subscription
    facts["messaging.danubius.redelivery_count"] = received.redelivery_count
    context: Context | None = None
    if isinstance(received, Message):
        facts["messaging.message.body.size"] = len(received.payload)
        facts["messaging.danubius.offset"] = received.offset
        if not trace.get_current_span().get_span_context().is_valid:
            context = context_of(received)
    else:
        facts["messaging.batch.message_count"] = len(received)
    with _span(SpanKind.CONSUMER, facts, context, links_of(received)) as span:
        yield span


# ---------------------------------------------------------------- who sends


def carry(attributes: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The attributes with the current context in them. They keep what they have: it may be somebody else's."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return attributes
    return {**carrier, **attributes} if attributes else carrier


class TracedProducer(Producer):
    """What is added to a producer: a span around each call, and its context in what is sent."""

    is_traced = True

    def carry(self, attributes: Mapping[str, str] | None) -> Mapping[str, str] | None:
        return carry(attributes)

    async def send(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        deliver_after: DeliverAfter | None = None,
        deliver_at: datetime | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipt:
        with _sending(self.topic, payload) as span:
            receipt = await super().send(
                payload,
                key=key,
                attributes=carry(attributes),
                deliver_after=deliver_after,
                deliver_at=deliver_at,
                ttl=ttl,
            )
            if not receipt.is_scheduled:
                span.set_attribute("messaging.danubius.offset", receipt.offset)
            return receipt

    def send_nowait(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        deliver_after: DeliverAfter | None = None,
        deliver_at: datetime | None = None,
        ttl: TimeToLive | None = None,
    ) -> None:
        with _sending(self.topic, payload):
            super().send_nowait(
                payload,
                key=key,
                attributes=carry(attributes),
                deliver_after=deliver_after,
                deliver_at=deliver_at,
                ttl=ttl,
            )

    async def send_many(
        self,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Mapping[str, str] | None] | None = None,
        deliver_after: DeliverAfterMany | None = None,
        deliver_at: DeliverAtMany | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipts:
        facts = _facts("send", self.topic)
        facts["messaging.batch.message_count"] = len(payloads)
        with _span(SpanKind.PRODUCER, facts):
            return await super().send_many(
                payloads,
                keys=keys,
                attributes=_carry_many(attributes, len(payloads)),
                deliver_after=deliver_after,
                deliver_at=deliver_at,
                ttl=ttl,
            )


class TracedLane(TracedProducer, ProducerLane):
    """The producer of a topic that is not partitioned, traced."""


class TracedPartitions(TracedProducer, PartitionedProducer):
    """The producer of a partitioned topic, traced."""


def _carry_many(
    attributes: Sequence[Mapping[str, str] | None] | None, count: int
) -> Sequence[Mapping[str, str] | None] | None:
    common = carry(None)
    if common is None:
        return attributes
    if attributes is None:
        return [common] * count
    return [{**common, **own} if own else common for own in attributes]


def _sending(topic: str, payload: bytes) -> AbstractContextManager[Span]:
    facts = _facts("send", topic)
    facts["messaging.message.body.size"] = len(payload)
    return _span(SpanKind.PRODUCER, facts)


def _facts(operation: str, topic: str) -> dict[str, str | int]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


@contextmanager
def _span(
    kind: SpanKind,
    facts: Mapping[str, str | int],
    context: Context | None = None,
    links: Sequence[SpanLink] = (),
) -> Generator[Span]:
    name = f"{facts['messaging.operation.name']} {facts['messaging.destination.name']}"
    with _tracer.start_as_current_span(
        name, context, kind=kind, attributes=facts, links=links
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)
            raise
