"""SIGHUP: settings are read again, and what may change while the broker runs changes.

All or nothing: settings with a mistake in them change nothing, and the log says what is wrong. What needs a restart is
named and left as it is, also for the reloads that follow.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.app.settings import KEYS, LIVE, load
from danubius.errors import DanubiusError
from danubius.runtime.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.app.settings import Loaded, Settings, Sources
    from danubius.broker.broker import Broker
    from danubius.broker.topic import Topic

TOPICS_PER_TURN: Final = 500
"""Topics that get their new policies in one turn of the loop: it must not stand still for the others."""

log = logging.getLogger(__name__)


class Reload:
    """Knows what holds now, and brings the broker from there to what the sources say."""

    def __init__(self, broker: Broker, sources: Sources, loaded: Loaded) -> None:
        self._broker = broker
        self._sources = sources
        self._values = loaded.values
        self._run = 0

    def reload(self) -> None:
        """Read everything again; never raises."""
        try:
            loaded = load(self._sources)
        except DanubiusError as error:
            problems = error.message.replace("\n", "; ")
            log.warning("settings not reloaded: nothing changed", extra={"problems": problems})
            return
        changed = [path for path in KEYS if loaded.values[path] != self._values[path]]
        live = [path for path in changed if path in LIVE]
        self._values = self._values | {path: loaded.values[path] for path in live}
        self._apply(loaded.settings, live)
        restart = [path for path in changed if path not in LIVE]
        log.info(
            "settings reloaded",
            extra={
                "changed": ", ".join(live) or "nothing",
                "needs_restart": ", ".join(restart) or "nothing",
            },
        )

    def _apply(self, settings: Settings, live: list[str]) -> None:
        if any(path.startswith("logs.") for path in live):
            set_up_logging(settings.logs.level, settings.logs.format)
        broker = self._broker
        names = [path.removeprefix("broker.") for path in live if path.startswith("broker.")]
        broker.config = msgspec.structs.replace(
            broker.config,
            policies=settings.broker.policies,
            **{name: getattr(settings.broker, name) for name in names},
        )
        if any(path.startswith("policies.") for path in live) or "message_bytes_max" in names:
            self._run += 1
            self._apply_policies(iter(list(broker.topics_by_id.values())), self._run)

    def _apply_policies(self, topics: Iterator[Topic], run: int) -> None:
        if run != self._run:  # a later reload goes over all of them
            return
        some = list(islice(topics, TOPICS_PER_TURN))
        for topic in some:
            if self._broker.topics_by_id.get(topic.id) is topic:
                self._broker.apply_policies(topic)
        if some:
            self._broker.loop.call_soon(self._apply_policies, topics, run)
