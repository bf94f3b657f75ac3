"""Tells a subscription how far a query came, so that its lag shows where that of consumers does.

The offsets that count are in Spark's checkpoint. This is a copy for people and for retention: it may be late, and
whatever goes wrong here is logged and costs the query nothing.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.errors import DanubiusError
from danubius.model import admin
from danubius.model.admin_codec import encode_request
from danubius.model.subscription import AtOffset
from danubius.wire.commands import Administer, Administered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from danubius.spark.connection.fetching import FetchClient

INTERVAL_S: Final = 1.0
"""Each report is a journal record; more of them tell nobody more."""

log = logging.getLogger(__name__)


class Reporter:
    """Moves one subscription of every partition that a query reads."""

    def __init__(self, client: FetchClient, subscription: str) -> None:
        self._client = client
        self._subscription = subscription
        self._told: dict[str, int] = {}
        self._pending: dict[str, int] = {}
        self._told_at: float | None = None

    def report(self, offsets: Mapping[str, int]) -> None:
        """All below these offsets, by the broker's names of the partitions, has been read."""
        self._pending = {name: at for name, at in offsets.items() if self._told.get(name) != at}
        self.flush()

    def flush(self, *, at_once: bool = False) -> None:
        """Tell what was not told yet, unless something was a moment ago."""
        now = time.monotonic()
        is_early = self._told_at is not None and now - self._told_at < INTERVAL_S
        if not self._pending or (is_early and not at_once):
            return
        pending, self._pending = self._pending, {}
        self._told_at = now
        try:
            self._create([name for name in pending if name not in self._told])
            self._seek(pending)
        except DanubiusError as error:
            self._told.clear()  # it may be gone together with its topic: it is made again with the next report
            log.warning("the subscription %s was not moved: %s", self._subscription, error.message)

    def _create(self, names: list[str]) -> None:
        self._administer(
            [admin.CreateSubscription(name, self._subscription, exist_ok=True) for name in names]
        )

    def _seek(self, offsets: Mapping[str, int]) -> None:
        self._administer(
            [
                admin.SeekSubscription(name, self._subscription, AtOffset(at))
                for name, at in offsets.items()
            ]
        )
        self._told.update(offsets)

    def _administer(
        self, requests: list[admin.CreateSubscription | admin.SeekSubscription]
    ) -> None:
        commands = [Administer(msgspec.Raw(encode_request(request))) for request in requests]
        for command, answer in zip(commands, self._client.request_all(commands), strict=True):
            self._client.check(command, answer, Administered)
