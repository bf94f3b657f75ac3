"""The journal as the publish path needs it: a place to append, and a token that hears how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.errors import DanubiusError
    from danubius.model.buffers import Buffer


class JournalToken(Protocol):
    """Stands for one append until the journal has committed or failed it. Both calls come on the loop."""

    def committed(self) -> None: ...

    def failed(self, error: DanubiusError) -> None: ...


class JournalSink(Protocol):
    """Where records are appended; never blocks."""

    def append(
        self,
        kind: int,
        topic_id: int,
        body: Buffer | Sequence[Buffer],
        token: JournalToken | None,
        *,
        sync: bool,
    ) -> None: ...


BATCH_RECORD: Final = 1
"""Journal record kind of a record batch."""


class TopicJournal:
    """One topic's way into the journal."""

    __slots__ = ("_journal", "_sync", "_topic_id")

    def __init__(self, journal: JournalSink, topic_id: int, *, sync: bool) -> None:
        self._journal = journal
        self._topic_id = topic_id
        self._sync = sync

    def append(self, batch: Buffer, token: JournalToken) -> None:
        self._journal.append(BATCH_RECORD, self._topic_id, batch, token, sync=self._sync)
