"""Requests of producers: open, publish, close."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, HandleNotFound
from danubius.session.opening import Opening
from danubius.shard.hosting.producer import ProducerHandle
from danubius.wire.commands import CloseProducer, OpenProducer, Produce

if TYPE_CHECKING:
    from danubius.publish.core.sequencer import Producer
    from danubius.session.state import Handler, PayloadHandler, SessionState
    from danubius.shard.hosting.place import Place


def _open_producer(session: SessionState, command: OpenProducer, correlation_id: int) -> None:
    handle = session.reserve_handle()

    def opened(place: Place, producer: Producer) -> None:
        session.on_closed.discard(opening.cancel)
        attached = ProducerHandle(
            session.shard,
            session.peer,
            place.topic,
            producer,
            handle,
            session.forget_producer,
            place,
        )
        session.producers[handle] = attached
        session.peer.send(attached.attach(), correlation_id)

    def failed(error: DanubiusError) -> None:
        session.on_closed.discard(opening.cancel)
        session.fail(correlation_id, error)

    opening = Opening(
        session.shard,
        command,
        session.later(correlation_id, opened, handle),
        session.later(correlation_id, failed, handle),
        session.peer.address,
    )
    session.on_closed.add(opening.cancel)
    try:
        with session.promising(handle):
            opening.start()
    except DanubiusError:
        session.on_closed.discard(opening.cancel)
        raise


def _produce(
    session: SessionState, command: Produce, correlation_id: int, payload: memoryview
) -> None:
    producer = session.producers.get(command.handle)
    if producer is None:
        raise HandleNotFound(f"no producer is open under handle {command.handle}; open it again")
    producer.produce(payload, correlation_id)
    if session.shard.pressure.must_wait(session, len(payload)):
        session.pause_publishing()


def _close_producer(session: SessionState, command: CloseProducer, correlation_id: int) -> None:
    producer = session.producers.pop(command.handle, None)
    if producer is not None:
        producer.detach()
    session.finish(correlation_id, None)


HANDLERS: Final[dict[type, Handler]] = {
    OpenProducer: _open_producer,
    CloseProducer: _close_producer,
}
PAYLOAD_HANDLERS: Final[dict[type, PayloadHandler]] = {
    Produce: _produce,
}
