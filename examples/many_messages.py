"""A million messages in, and the same million out, batch by batch."""

import asyncio
import os
import time

import danubius

URL = os.environ.get("DANUBIUS_URL", "danube://127.0.0.1:6651")
COUNT = int(os.environ.get("COUNT", "1000000"))
TOPIC = "/default/numbers"


async def main() -> None:
    payloads = [b"%d" % number for number in range(COUNT)]
    async with danubius.connect(URL) as client:
        started = time.monotonic()
        async with client.producer(TOPIC) as producer:
            receipts = await producer.send_many(payloads)
        print(f"stored {len(receipts)} messages in {time.monotonic() - started:.2f} s")

        received = total = 0
        started = time.monotonic()
        async with client.consumer(
            TOPIC, subscription="adder", start=receipts.first_offset
        ) as consumer:
            while received < COUNT:
                batch = await consumer.receive_batch(timeout=30)
                received += len(batch)
                total += sum(map(int, batch.payloads))
                await consumer.ack(batch)
        print(f"received {received} in {time.monotonic() - started:.2f} s, their sum is {total}")
        assert total == COUNT * (COUNT - 1) // 2


asyncio.run(main())
