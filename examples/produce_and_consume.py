"""Send three orders and receive them again. Needs a broker: `danubius standalone`."""

import asyncio
import os

import danubius

URL = os.environ.get("DANUBIUS_URL", "danube://127.0.0.1:6651")
TOPIC = "/default/orders"


async def main() -> None:
    async with danubius.connect(URL) as client:
        async with client.producer(TOPIC) as producer:
            for order in (b"one tea", b"two coffees", b"three cakes"):
                receipt = await producer.send(order, attributes={"table": "7"})
                print(f"stored at offset {receipt.offset}: {order.decode()}")
        async with client.consumer(TOPIC, subscription="kitchen", start="earliest") as consumer:
            for _ in range(3):
                message = await consumer.receive(timeout=10)
                print(
                    f"received {message.payload.decode()} for table {message.attributes['table']}"
                )
                await consumer.ack(message)


asyncio.run(main())
