"""The client for programs without an event loop: the same words, without `async` and `await`.

with danubius.blocking.connect("danube://127.0.0.1:6651") as client:
with client.producer("/default/orders") as producer:
producer.send(b"hello")
"""

from __future__ import annotations

from danubius.client.blocking.client import Client, Consumer, Producer, Reader, connect

__all__ = ["Client", "Consumer", "Producer", "Reader", "connect"]
