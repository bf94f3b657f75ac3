"""Settings that may change while the broker runs, and do: by SIGHUP, which reads all settings again, and by request.

All or nothing: settings with a mistake in them change nothing, and the log, or the answer, says what is wrong. What
needs a restart is named and left as it is, also for the reloads that follow. What a request has set wins over file,
environment and flags until another request takes it back or the broker ends: it is written down nowhere.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danubius.app.settings import DEFAULT, KEYS, LIVE, Given, as_text, load, merge, unknown
from danubius.errors import DanubiusError, InvalidArgument
from danubius.model.admin_replies import Setting
from danubius.runtime.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from danubius.app.settings import Loaded, Settings, Sources
    from danubius.model.admin_replies import SettingValue
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard

TOPICS_PER_TURN: Final = 500
"""Topics that get their new policies in one turn of the loop: it must not stand still for the others."""
REQUEST: Final = "request"
"""Where a value came from that was set while the broker ran."""

log = logging.getLogger(__name__)


class Configured(NamedTuple):
    """Where the settings of the process came from, and what they were when it started."""

    sources: Sources
    loaded: Loaded


class Reload:
    """Knows what holds now, and brings the broker from there to what the sources and requests say."""

    def __init__(self, shard: Shard, configured: Configured) -> None:
        self._shard = shard
        self._sources = configured.sources
        self._loaded = configured.loaded
        self._configured = _given(configured.loaded)
        """What the sources gave, by path; of what needs a restart, as it was at the start."""
        self._requested: dict[str, Given] = {}
        self._run = 0

    @property
    def has_file(self) -> bool:
        return self._sources.config is not None

    def describe(self) -> list[Setting]:
        """Every setting, in the order of `--print-config`."""
        values, origins = self._loaded.values, self._loaded.origins
        return [
            Setting(
                path,
                as_text(key, values[path]),
                as_text(key, key.default),
                origins[path],
                path in LIVE,
                key.text,
            )
            for path, key in KEYS.items()
        ]

    def change(self, wanted: Mapping[str, SettingValue]) -> None:
        """Set what may change, None: back to what the sources say. InvalidArgument with a line for every problem."""
        problems = [unknown(path) for path in wanted if path not in KEYS]
        problems += [
            f"{path} is read once, at the start: set it in the file, the environment or a flag, and start the broker "
            "again"
            for path in wanted
            if path in KEYS and path not in LIVE
        ]
        if problems:
            raise InvalidArgument("\n".join(problems))
        requested = self._requested | {
            path: Given(path, value, REQUEST) for path, value in wanted.items()
        }
        requested = {path: one for path, one in requested.items() if one.value is not None}
        loaded = merge(self._configured.values(), requested.values())
        self._requested = requested
        changed = self._take(loaded)
        log.info("settings changed by request", extra={"changed": ", ".join(changed) or "nothing"})

    def reload(self) -> None:
        """Read everything again; never raises."""
        try:
            read = load(self._sources)
            configured = {
                path: one
                for layer, is_live in ((self._configured, False), (_given(read), True))
                for path, one in layer.items()
                if (path in LIVE) is is_live
            }
            loaded = merge(configured.values(), self._requested.values())
        except DanubiusError as error:
            problems = error.message.replace("\n", "; ")
            log.warning("settings not reloaded: nothing changed", extra={"problems": problems})
            return
        self._configured = configured
        changed = self._take(loaded)
        restart = [p for p in KEYS if p not in LIVE and read.values[p] != loaded.values[p]]
        log.info(
            "settings reloaded",
            extra={
                "changed": ", ".join(changed) or "nothing",
                "needs_restart": ", ".join(restart) or "nothing",
            },
        )

    def _take(self, loaded: Loaded) -> list[str]:
        """Make these hold; returns what that changed."""
        changed = [path for path in KEYS if loaded.values[path] != self._loaded.values[path]]
        self._loaded = loaded
        self._apply(loaded.settings, changed)
        return changed

    def _apply(self, settings: Settings, live: list[str]) -> None:
        if any(path.startswith("logs.") for path in live):
            set_up_logging(settings.logs.level, settings.logs.format)
        shard = self._shard
        names = [path.removeprefix("broker.") for path in live if path.startswith("broker.")]
        shard.config = msgspec.structs.replace(
            shard.config,
            policies=settings.broker.policies,
            **{name: getattr(settings.broker, name) for name in names},
        )
        if any(path.startswith("policies.") for path in live) or "message_bytes_max" in names:
            self._run += 1
            self._apply_policies(iter(list(shard.topics_by_id.values())), self._run)

    def _apply_policies(self, topics: Iterator[Topic], run: int) -> None:
        if run != self._run:  # a later reload goes over all of them
            return
        some = list(islice(topics, TOPICS_PER_TURN))
        for topic in some:
            if self._shard.topics_by_id.get(topic.id) is topic:
                self._shard.apply_policies(topic)
        if some:
            self._shard.loop.call_soon(self._apply_policies, topics, run)


def _given(loaded: Loaded) -> dict[str, Given]:
    return {
        path: Given(path, loaded.values[path], origin)
        for path, origin in loaded.origins.items()
        if origin != DEFAULT
    }
