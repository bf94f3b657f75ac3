"""The same client for programs without an event loop."""

import os

from danubius import blocking

URL = os.environ.get("DANUBIUS_URL", "danube://127.0.0.1:6651")
TOPIC = "/default/letters"

with blocking.connect(URL) as client:
    with client.producer(TOPIC) as producer:
        receipts = producer.send_many([b"alpha", b"beta", b"gamma"])
        print(f"stored at offsets {receipts.first_offset} to {receipts.last_offset}")
    with client.consumer(TOPIC, subscription="post-office", start="earliest") as consumer:
        for message in consumer:
            print(message.offset, message.payload.decode())
            consumer.ack(message)
            if message.offset == receipts.last_offset:
                break
