# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (pyarrow comes without types)
"""A message that was sent in pieces, as a batch of one record: it looks like any other to whoever decodes batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from danubius.client.core.chunks import user_attributes
from danubius.record.batch import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.client.core.acks import Range


class WholeBatch(RecordBatch):
    """The last piece, with the payload of all and the message's own attributes."""

    __slots__ = ("_attributes", "_payload", "ranges")

    def __init__(self, last: RecordBatch, payload: bytes, ranges: list[Range]) -> None:
        super().__init__(last.header, last.buffer)
        self._payload = payload
        self._attributes = user_attributes(last.attributes()[0])
        self.ranges = ranges
        """The offsets of all pieces."""

    def payloads(self) -> list[bytes]:
        return [self._payload]

    def payload(self, index: int) -> bytes:
        return self.payloads()[index]

    def attributes(self) -> list[dict[str, str]]:
        return [dict(self._attributes)]

    def to_arrow(
        self, topic: str = "", partition: int = 0, names: Sequence[str] | None = None
    ) -> Any:
        from danubius.record.arrow import SCHEMA  # isort: skip  # first: it says how to install pyarrow
        import pyarrow as pa

        last = super().to_arrow(topic, partition)
        row = last.to_pylist()[0]
        row["payload"] = self._payload
        row["attributes"] = list(self._attributes.items())
        batch = pa.RecordBatch.from_pylist([row], SCHEMA)
        return batch if names is None else batch.select(list(names))
