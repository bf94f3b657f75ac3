"""One consumer as its subscription sees it: a name, a credit, and whether its connection drains."""

from __future__ import annotations

from danubius.model.key_filters import KeyFilter


class Consumer:
    """Invariant: `messages` is never negative; `bytes` may be, by one delivery."""

    __slots__ = (
        "_own_timeout_ns",
        "ack_timeout_ns",
        "bytes",
        "consumer_id",
        "is_writable",
        "key_filter",
        "messages",
        "name",
    )

    def __init__(
        self,
        consumer_id: int,
        name: str,
        ack_timeout_ns: int,
        key_filters: tuple[str, ...] = (),
    ) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self._own_timeout_ns = ack_timeout_ns
        self.ack_timeout_ns = ack_timeout_ns
        """Its own, or else what the failure policy says; of deliveries to come."""
        self.messages = 0
        self.bytes = 0
        self.is_writable = True
        self.key_filter = KeyFilter(key_filters) if key_filters else None
        """Key-Shared: the keys it takes; None for all."""

    @property
    def key_filters(self) -> tuple[str, ...]:
        return self.key_filter.globs if self.key_filter is not None else ()

    def obey(self, ack_timeout_ns: int) -> None:
        """The failure policy's time-out holds for a consumer that has none of its own."""
        self.ack_timeout_ns = self._own_timeout_ns or ack_timeout_ns

    @property
    def has_room(self) -> bool:
        return self.messages > 0 and self.bytes > 0 and self.is_writable

    def due_ns(self, now_ns: int) -> int:
        """When a delivery made now counts as lost; 0 for never."""
        return now_ns + self.ack_timeout_ns if self.ack_timeout_ns else 0
