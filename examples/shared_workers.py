"""Three workers share one subscription; work that fails comes back to one of them."""

import asyncio
import os

import danubius

URL = os.environ.get("DANUBIUS_URL", "danube://127.0.0.1:6651")
TOPIC = "/default/jobs"
JOBS = 30


async def work(name: str, client: danubius.Client, done: list[bytes]) -> None:
    async with client.consumer(
        TOPIC, subscription="workers", type="shared", start="earliest", prefetch_messages=4
    ) as consumer:
        while len(done) < JOBS:
            try:
                job = await consumer.receive(timeout=1)
            except TimeoutError:
                continue  # the others may have done the rest
            if job.payload == b"job 7" and job.redelivery_count == 0:
                await consumer.nack(job, delay=0.1)  # try again a little later
                continue
            await consumer.ack(job)
            done.append(job.payload)
            print(f"{name} did {job.payload.decode()}, tries: {job.redelivery_count + 1}")


async def main() -> None:
    done: list[bytes] = []
    async with danubius.connect(URL) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"job %d" % number for number in range(JOBS)])
        async with asyncio.TaskGroup() as group:
            for name in ("ada", "ben", "cy"):
                group.create_task(work(name, client, done))


asyncio.run(main())
