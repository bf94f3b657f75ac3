"""`danubius sql` against a real broker and a real Spark: the session of the tests, and once a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from danubius import blocking
from danubius.spark.sql.topics import Topics
from e2e.broker_process import environment, run_command
from e2e.cli_calls import call, run, run_json
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Row, SparkSession

    from e2e.broker_process import BrokerProcess


def publish(url: str, topic: str, first: int, end: int, **options: Any) -> None:
    payloads = [
        b'{"id":%d,"price":%d.5,"offset":-1,"mixed":%s}' % (n, n, (b"1", b'"x"')[n % 2])
        for n in range(first, end)
    ]
    with blocking.connect(url) as client, client.producer(topic, **options) as producer:
        producer.send_many(payloads)


def test_questions_and_their_answers(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    assert spark.version
    publish(broker.url, topic, 0, 20)
    with blocking.connect(broker.url) as client, client.producer(topic) as producer:
        producer.send(b"oops")
    name = f"danube.`{topic}`"

    table = run(
        broker, "sql", f"SELECT offset, payload FROM {name} WHERE offset < 2 ORDER BY 1"
    ).splitlines()
    assert table[0].split() == ["offset", "payload"]
    assert [line.split()[0] for line in table[1:]] == ["0", "1"]
    assert run_json(
        broker,
        "sql",
        f"SELECT count(*) AS n FROM {name} WHERE publish_time > now() - INTERVAL 1 HOUR",
    ) == [{"n": 21}]
    assert run_json(
        broker,
        "sql",
        f"SELECT count(*) AS n FROM {name} WHERE publish_time > now() + INTERVAL 1 HOUR",
    ) == [{"n": 0}]
    assert run_json(
        broker, "sql", f"SELECT get_json_object(payload, '$.id') AS i FROM {name} WHERE offset = 7"
    ) == [{"i": "7"}]
    inferred = run_json(
        broker,
        "sql",
        f"SELECT sum(id) AS s, max(payload.offset) AS o, max(offset) AS m, count(_error) AS bad FROM {name}",
        "--infer",
    )
    assert inferred == [{"s": 190, "o": -1, "m": 20, "bad": 1}]
    declared = run_json(
        broker,
        "sql",
        f"SELECT id, price FROM {name} WHERE id >= 18 ORDER BY id",
        "--schema",
        f"{topic}=id INT, price DOUBLE",
    )
    assert declared == [{"id": 18, "price": 18.5}, {"id": 19, "price": 19.5}]
    everywhere = run_json(
        broker,
        "sql",
        f"SELECT count(*) AS n FROM {name} a JOIN {name} b USING (id)",
        "--schema",
        "id INT",
    )
    assert everywhere == [{"n": 20}]
    assert len(run_json(broker, "sql", f"SELECT * FROM {name}", "--limit", "3")) == 3
    ended = run_json(
        broker,
        "sql",
        f"SELECT count(*) AS n FROM {name}",
        "--option",
        f'endingOffsets={{"{topic}":{{"0":5}}}}',
    )
    assert ended == [{"n": 5}]
    described = run_json(broker, "sql", f"DESCRIBE {name}")
    assert {"col_name": "payload", "data_type": "string", "comment": None} in described


def test_bounds_of_partitioned_topics(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    with blocking.connect(broker.url) as client:
        client.create_topic(topic, partitions=3)
    publish(broker.url, topic, 0, 15, batch_records=1)
    publish(broker.url, topic, 15, 30, batch_records=1)
    topics = Topics(spark, broker.url)
    columns = f"SELECT partition, offset, unix_micros(publish_time) AS t FROM danube.`{topic}`"
    every = topics.query(columns).collect()
    assert len(every) == 30
    middle = sorted(row.t for row in every)[15]
    conditions: dict[str, Callable[[Row], bool]] = {
        "offset >= 5": lambda row: row.offset >= 5,
        "offset < 3": lambda row: row.offset < 3,
        "offset > 2 AND offset <= 6": lambda row: 2 < row.offset <= 6,
        "offset = 4": lambda row: row.offset == 4,
        "offset > 100": lambda _: False,
        f"publish_time >= timestamp_micros({middle})": lambda row: row.t >= middle,
        f"publish_time > timestamp_micros({middle}) AND offset < 9": lambda row: (
            row.t > middle and row.offset < 9
        ),
    }
    for condition, is_met in conditions.items():
        found = topics.query(f"{columns} WHERE {condition}").collect()
        assert sorted(found) == sorted(filter(is_met, every)), condition


def test_bounds_are_given_to_the_source(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    """Read by the plan: a task reads as many records as the source was asked for."""
    publish(broker.url, topic, 0, 100)
    topics = Topics(spark, broker.url, options={"maxRecordsPerPartition": "10"})
    name = f"danube.`{topic}`"

    def tasks(where: str) -> int:
        return topics.query(f"SELECT offset FROM {name} {where}").rdd.getNumPartitions()

    assert tasks("") == 10
    assert tasks("WHERE offset >= 50 AND offset < 70") == 2
    assert tasks("WHERE offset >= 50 OR offset < 70") == 10
    assert tasks("WHERE publish_time >= now() - INTERVAL 1 DAY") == 10
    assert tasks("WHERE publish_time >= now() + INTERVAL 1 DAY") <= 1


def test_watch_ends_at_its_limit(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    assert spark.version
    publish(broker.url, topic, 0, 6)
    name = f"danube.`{topic}`"
    rows = run_json(
        broker, "sql", f"SELECT offset FROM {name} WHERE offset >= 2", "--watch", "--limit", "3"
    )
    assert [row["offset"] for row in rows] == [2, 3, 4]
    sorted_ones = run(
        broker, "sql", f"SELECT id % 2 AS odd, count(*) AS n FROM {name} GROUP BY 1 ORDER BY 1", "--watch",
        "--from", "earliest", "--schema", "id INT", "--limit", "2",
    )  # fmt: skip
    assert [line.split() for line in sorted_ones.splitlines()] == [
        ["odd", "n"],
        ["0", "3"],
        ["1", "3"],
    ]
    still = call(broker, "sql", "SELECT 1", "--watch")
    assert (still.code, "needs a query that reads a topic" in still.stderr) == (1, True)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("SELECT nope FROM {topic}", "(line 1, position 7)"),
        ("SELECT offset\nFORM x {topic}", "Syntax error at or near"),
        ("SELECT * FROM nix, {topic}", "`nix` cannot be found"),
        ("SELECT 1 / (offset - offset) FROM {topic}", "Division by zero"),
        ("SELECT * FROM danube.`/default/nope`", "topic /default/nope does not exist"),
        ("SELECT * FROM danube.orders", "line 1, position 21"),
        ("DELETE FROM {topic}", "DELETE is not a query"),
        ("", "the query is empty"),
    ],
)
def test_mistakes_are_told_in_one_line(
    spark: SparkSession, broker: BrokerProcess, query: str, sentence: str
) -> None:
    topic = "/default/sql-mistakes"
    publish(broker.url, topic, 0, 1)
    done = call(broker, "sql", query.format(topic=f"danube.`{topic}`"))
    assert done.code == 1
    assert done.stdout == ""
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_cannot_be_is_told_without_spark(broker: BrokerProcess, topic: str) -> None:
    publish(broker.url, topic, 0, 1)
    query = f"SELECT * FROM danube.`{topic}`"
    wrong = call(broker, "sql", query, "--schema", "id BIGIN")
    assert (wrong.code, "did you mean BIGINT?" in wrong.stderr) == (1, True)
    with blocking.connect(broker.url) as client, client.producer(f"{topic}-text") as producer:
        producer.send(b"no json")
    nothing = call(broker, "sql", f"SELECT * FROM danube.`{topic}-text`", "--infer")
    assert (nothing.code, "no schema can be inferred" in nothing.stderr) == (1, True)
    assert call(broker, "sql", query, "--option", "x").code == 2
    nobody = run_command("sql", query, "--url", "danube://127.0.0.1:9")
    assert (nobody.code, nobody.stdout) == (1, "")
    assert nobody.stderr.startswith("danubius: no broker answers at danube://127.0.0.1:9")
    assert len(nobody.stderr.splitlines()) == 1


def test_watch_follows_until_ctrl_c(broker: BrokerProcess, topic: str) -> None:
    publish(broker.url, topic, 0, 5)
    query = f"SELECT count(*) AS n, sum(id) AS s FROM danube.`{topic}`"
    command = [
        sys.executable, "-m", "danubius", "sql", query, "--watch", "--from", "earliest", "--schema", "id BIGINT",
        "--json", "--master", "local[1]", "--url", broker.url,
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        try:
            assert json.loads(watching.stdout.readline()) == {"n": 5, "s": 10}
            publish(broker.url, topic, 5, 6)
            assert json.loads(watching.stdout.readline()) == {"n": 6, "s": 15}
            os.killpg(watching.pid, signal.SIGINT)
            rest, told = watching.communicate(timeout=HANG_S)
        finally:
            if watching.poll() is None:
                os.killpg(watching.pid, signal.SIGKILL)
    assert (watching.returncode, rest, told) == (0, "", "")
