"""Read a topic from the start without a subscription, as often as you like."""

import asyncio
import os

import danubius

URL = os.environ.get("DANUBIUS_URL", "danube://127.0.0.1:6651")
TOPIC = "/default/measurements"


async def main() -> None:
    async with danubius.connect(URL) as client:
        async with client.producer(TOPIC) as producer:
            for celsius in (18.5, 19.0, 21.5):
                await producer.send(b"%.1f" % celsius, key=b"kitchen")
        for attempt in ("first", "second"):
            async with client.reader(TOPIC, start="earliest", stop_at_end=True) as reader:
                values = [float(message.payload) async for message in reader]
            print(f"{attempt} reading: {values}")


asyncio.run(main())
