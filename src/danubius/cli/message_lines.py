"""Messages as lines: of `consume`, `subscriptions peek` and `subscriptions dead-letters`."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import danubius


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
    return msgspec.json.encode(line) + b"\n"


def text_or_base64(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
