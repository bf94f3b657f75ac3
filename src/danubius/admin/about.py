"""The broker's identity, as it tells operators; the process that runs it fills it in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from danubius.model.admin_replies import Setting, SettingValue


class LiveSettings(Protocol):
    """The settings of the process."""

    def describe(self) -> list[Setting]: ...

    def change(self, wanted: Mapping[str, SettingValue]) -> None:
        """All or nothing; InvalidArgument says what cannot be."""
        ...


class About:
    """What the broker's state does not know."""

    __slots__ = (
        "broker_id",
        "connections",
        "grpc_url",
        "settings",
        "started_ms",
        "url",
        "version",
    )

    def __init__(self) -> None:
        self.broker_id = ""
        self.version = ""
        self.url = ""
        self.grpc_url = ""
        """Where Danube's clients find it; empty: they are not served."""
        self.started_ms = 0
        self.connections: Callable[[], int] = _none
        self.settings: LiveSettings | None = None
        """None: a program started the broker, and keeps its settings to itself."""

    @property
    def address(self) -> str:
        """Where it is, as Danube's clients or else its own know it; its name while no port is open."""
        return self.grpc_url or self.url or self.broker_id


def _none() -> int:
    return 0
