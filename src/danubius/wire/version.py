"""Which versions of the protocol this build speaks, and how two peers agree on one.

The version governs the set of commands and what they mean. It is chosen once, by the broker, in Welcome: the highest
that both speak. The layout of the frame itself has its own version, in the frame's magic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.errors import UnsupportedVersion

if TYPE_CHECKING:
    from danubius.wire.commands import Hello, Welcome

PROTOCOL_VERSION_MIN: Final = 1
PROTOCOL_VERSION_MAX: Final = 1


def choose_version(hello: Hello) -> int:
    """The version to answer with, or UnsupportedVersion."""
    chosen = min(hello.version_max, PROTOCOL_VERSION_MAX)
    if chosen < max(hello.version_min, PROTOCOL_VERSION_MIN):
        raise UnsupportedVersion(
            f"the client speaks protocol versions {hello.version_min} to {hello.version_max}, this broker"
            f" {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}: upgrade the older of the two"
        )
    return chosen


def check_version(welcome: Welcome) -> int:
    """The version the broker chose, or UnsupportedVersion if this client did not offer it."""
    if not PROTOCOL_VERSION_MIN <= welcome.version <= PROTOCOL_VERSION_MAX:
        raise UnsupportedVersion(
            f"the broker chose protocol version {welcome.version}, this client speaks"
            f" {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}: upgrade the older of the two"
        )
    return welcome.version
