# pyright: reportUnknownVariableType=false
"""Dead letters, written by processes that know nothing of each other."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from danubius import blocking
from danubius.spark.payloads.dead_letters import DeadLetters
from danubius.spark.payloads.typed import BadRecords
from e2e.broker_process import environment
from patience import HANG_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

_RECORDS = 500
_WORKER = """
import sys
from danubius import blocking
from danubius.spark.payloads.dead_letters import DeadLetters
from danubius.spark.payloads.typed import BadRecords

url, topic, dead = sys.argv[1:]
with blocking.connect(url) as client, client.reader(topic, stop_at_end=True) as reader:
    table = reader.read_batch().to_arrow().combine_chunks()
(batch,) = table.to_batches()
for first in range(0, batch.num_rows, 100):
    part = batch.slice(first, 100)
    DeadLetters(url, dead).publish(BadRecords(part, ["bad"] * part.num_rows))
"""


def publish(url: str, topic: str, count: int) -> None:
    with blocking.connect(url) as client, client.producer(topic) as producer:
        producer.send_many([b"%d" % number for number in range(count)])


def records(url: str, topic: str) -> Any:
    with blocking.connect(url) as client, client.reader(topic, stop_at_end=True) as reader:
        batch = reader.read_batch()
        assert batch is not None
        (columns,) = batch.to_arrow().combine_chunks().to_batches()
        return columns


def payloads(url: str, topic: str) -> list[bytes]:
    with blocking.connect(url) as client, client.reader(topic, stop_at_end=True) as reader:
        return [message.payload for message in reader]


def test_tasks_beside_each_other_write_a_letter_once(broker: BrokerProcess, topic: str) -> None:
    publish(broker.url, topic, _RECORDS)
    dead = f"{topic}-dead"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, broker.url, topic, dead],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    told = [worker.communicate(timeout=HANG_S)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, told
    letters = payloads(broker.url, dead)
    assert sorted(map(int, letters)) == list(range(_RECORDS))


def test_a_topic_made_again_has_letters_of_its_own(broker: BrokerProcess, topic: str) -> None:
    dead = f"{topic}-dead"
    letters = DeadLetters(broker.url, dead)
    for number in range(2):
        publish(broker.url, topic, 3)
        columns = records(broker.url, topic)
        letters.publish(BadRecords(columns, ["bad"] * 3))
        letters.publish(BadRecords(columns.slice(1, 2), ["bad"] * 2))
        assert len(payloads(broker.url, dead)) == 3 * (number + 1)
        with blocking.connect(broker.url) as client:
            client.delete_topic(topic)
