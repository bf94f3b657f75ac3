"""What a scripted broker does with batches, as the real one does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import danubius
from danubius.errors import OutOfSequence
from danubius.record.batch import RecordBatch, read_header
from danubius.wire.commands import Error, Produce, Produced

if TYPE_CHECKING:
    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker


def payloads_of(frame: Frame) -> list[bytes]:
    return RecordBatch.parse(frame.payload).payloads()


class Store:
    """Stores batches as the real broker does: in sequence, each once, with the first answer for a repeat."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.stored: list[bytes] = []
        self.answers: dict[tuple[int, int], int] = {}
        self.refusals: list[danubius.DanubiusError] = []
        self.poison: bytes | None = None
        self.is_silent = False
        broker.on[Produce] = self.produce

    def produce(self, peer: Peer, frame: Frame) -> None:
        header = read_header(frame.payload)
        key = header.producer_epoch, header.base_sequence
        error = self._refusal(frame)
        if error is not None:
            peer.send(Error(error.code, str(error), int(error.retry)), frame.correlation_id)
            return
        if key not in self.answers:
            self.answers[key] = len(self.stored)
            self.stored += payloads_of(frame)
            self.broker.next_sequence += header.count
        if not self.is_silent:
            peer.send(Produced(self.answers[key]), frame.correlation_id)

    def _refusal(self, frame: Frame) -> danubius.DanubiusError | None:
        header = read_header(frame.payload)
        assert header.producer_epoch == self.broker.epoch
        if (header.producer_epoch, header.base_sequence) in self.answers:
            return None
        if self.refusals:
            return self.refusals.pop(0)
        if header.base_sequence != self.broker.next_sequence:
            return OutOfSequence("not yet")
        if self.poison is not None and self.poison in payloads_of(frame):
            return danubius.InvalidBatch("poison")
        return None
