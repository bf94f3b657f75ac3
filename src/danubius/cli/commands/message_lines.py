"""Messages as lines: of `consume`, `topics read`, `subscriptions peek` and `subscriptions dead-letters`.

Payloads go into a pipe or a file as they are. At a terminal their control characters are written out, because it would
obey them: a message could clear the screen, or answer in the name of whoever reads it.
"""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING

import click

from danubius.cli.output import json_text
from danubius.redaction import visible_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import danubius
    from danubius.cli.options import F


def raw_option(command: F) -> F:
    return click.option(
        "--raw", is_flag=True,
        help="Payloads as they are, also at a terminal, where control characters are written out otherwise.",
    )(command)  # fmt: skip


def renderer(*, as_json: bool, raw: bool) -> Callable[[danubius.Message], bytes]:
    """How a message is printed to where stdout goes."""
    if as_json:
        return json_line
    return text_line if raw or not sys.stdout.isatty() else seen_line


def seen_line(message: danubius.Message) -> bytes:
    return visible_bytes(message.payload, keep="\n\t").encode() + b"\n"


def text_line(message: danubius.Message) -> bytes:
    return message.payload + b"\n"


def json_line(message: danubius.Message) -> bytes:
    line: dict[str, object] = {
        "topic": message.topic,
        "offset": message.offset,
        "publish_time": message.publish_time.isoformat(),
        "redelivery_count": message.redelivery_count,
        "attributes": message.attributes,
    }
    if message.key is None:
        line["key"] = None
    else:
        line |= text_or_base64("key", message.key)
    line |= text_or_base64("payload", message.payload)
    return json_text(line).encode() + b"\n"


def text_or_base64(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
