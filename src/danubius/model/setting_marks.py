"""Marks that say how a setting is shown: a mark on its type, which every face of the settings obeys.

Whoever adds a setting whose name sounds like a secret gives it one of these types; a test fails otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, cast

import msgspec

from danubius.redaction import HIDDEN, is_secret_name, redact_address, shown_options

if TYPE_CHECKING:
    from collections.abc import Mapping

_AS_MARKED: Final = "shown"


def _marked(how: str) -> msgspec.Meta:
    return msgspec.Meta(extra={_AS_MARKED: how})


Address = Annotated[str, _marked("address")]
"""A setting that is an address: shown without user, password and secret parameters."""
Options = Annotated[dict[str, str], _marked("options")]
"""A setting that is a table of options: of those with secret names only the names are shown."""
Secret = Annotated[str, _marked("secret")]
"""A setting that is never shown."""
Harmless = Annotated[str, _marked("harmless")]
"""A setting whose name only sounds like a secret."""


def needs_mark(name: str) -> bool:
    """Whether a setting of this name must say how it is shown: one of the types above."""
    last = name.rpartition(".")[2]
    return is_secret_name(last) or last.endswith(("url", "urls", "uri", "options", "address"))


def mark_of(extra: Mapping[str, object] | None) -> str:
    """How a setting is marked, from what `msgspec.inspect` tells of its type; empty: it is not."""
    return str((extra or {}).get(_AS_MARKED, ""))


def shown_setting(value: object, mark: str) -> object:
    """A setting's value as everybody may see it."""
    if mark == "secret":
        return HIDDEN if value else value
    if isinstance(value, dict):
        return shown_options(cast("dict[str, object]", value))
    return redact_address(value) if isinstance(value, str) and mark == "address" else value
