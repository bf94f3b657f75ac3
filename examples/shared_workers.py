"""Three workers share one subscription; work that fails comes back to one of them."""

import asyncio
import os

import danubius

URL = os.environ.get("DANUBIUS_URL", "danube://127.0.0.1:6651")
TOPIC = "/default/jobs"
JOBS = 30


async def work(name: str, client: danubius.Client, done: list[str], enough: asyncio.Event) -> None:
    async with client.consumer(
        TOPIC, subscription="workers", type="shared", start="earliest", prefetch_messages=4
    ) as consumer:
        async for job in consumer:
            if job.payload == b"job 7" and job.redelivery_count == 0:
                await consumer.nack(job, delay=0.1)  # try again a little later
                continue
            done.append(f"{name} did {job.payload.decode()}, tries: {job.redelivery_count + 1}")
            await consumer.ack(job)
            if len(done) == JOBS:
                enough.set()


async def main() -> None:
    done: list[str] = []
    enough = asyncio.Event()
    async with danubius.connect(URL) as client, asyncio.TaskGroup() as group:
        workers = [
            group.create_task(work(name, client, done, enough)) for name in ("ada", "ben", "cy")
        ]
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"job %d" % number for number in range(JOBS)])
        await enough.wait()
        for worker in workers:
            worker.cancel()
    print("\n".join(done))


asyncio.run(main())
