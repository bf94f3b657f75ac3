"""Publishing and reading over HTTP, beside clients of the native protocol."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import danubius
from e2e.rest_client import Rest
from e2e.traffic import take

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


async def test_what_is_published_over_http_reaches_a_client(
    broker: BrokerProcess, topic: str
) -> None:
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        body = {
            "messages": [
                {"text": "żółw", "key": "k", "attributes": {"a": "b"}},
                {"json": {"n": [1, 2.5, None]}},
                {"base64": base64.b64encode(b"\xff\x00").decode(), "key_base64": "/w=="},
            ]
        }
        answer = await rest.post(rest.path(topic, "messages"), body, 201)
        assert [(place["topic"], place["offset"]) for place in answer["places"]] == [
            (topic, 0),
            (topic, 1),
            (topic, 2),
        ]
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            first, second, third = await take(consumer, 3)
    assert (first.payload.decode(), first.key, first.attributes) == ("żółw", b"k", {"a": "b"})
    assert (second.payload, second.key) == (b'{"n":[1,2.5,null]}', None)
    assert (third.payload, third.key) == (b"\xff\x00", b"\xff")
