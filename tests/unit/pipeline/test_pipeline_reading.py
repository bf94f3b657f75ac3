"""A pipeline file is understood, or every mistake in it is named with its line and the fix."""

from __future__ import annotations

import pytest

from danubius.pipeline.graph import draw, in_order, needs
from danubius.pipeline.problems import InvalidPipeline
from danubius.pipeline.reading import Given, read
from danubius.pipeline.spec import Deduplicate, Restart, Trigger, Watermark

GOOD = '''\
name = "averages"
url = "danube://127.0.0.1:7000"
checkpoint = "checkpoints/averages"
trigger = "500ms"

[parameters]
input = "/default/sensors"

[spark]
sql.shuffle.partitions = 2
"spark.ui.enabled" = false

[restart]
attempts_max = 3
first_delay = "2s"

[source.raw]
topic = "${input}"
options = { startingOffsets = "earliest", maxOffsetsPerTrigger = 1000 }

[source.devices]
table = "tables/devices"

[step.readings]
watermark = { column = "at", delay = "10 minutes" }
deduplicate = ["id"]
sql = """
SELECT key AS id, publish_time AS at
FROM raw
-- FROM nowhere
"""

[step.averages]
sql = "SELECT r.id, count(*) AS n FROM readings r JOIN devices USING (id) GROUP BY r.id, window(at, '1 minute')"

[step.rows]
python = "danubius.pipeline.reading:read"
inputs = ["averages"]
arguments = { gap = 3 }

[sink.table]
from = "averages"
table = "tables/averages"
format = "delta"
partition_by = ["id"]
trigger = "available-now"

[sink.topic]
from = "rows"
topic = "/default/averages"
mode = "append"
'''


def _problems(text: str, **parameters: str) -> list[str]:
    with pytest.raises(InvalidPipeline) as raised:
        read(text, "p.toml", Given(parameters=parameters))
    return raised.value.message.splitlines()


def _line(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def _wrong(old: str, new: str) -> str:
    """The one problem that this change makes."""
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    found = _problems(text)
    assert len(found) == 1, found
    return found[0]


def test_a_whole_file() -> None:
    pipeline = read(GOOD, "p.toml")
    assert (pipeline.name, pipeline.url) == ("averages", "danube://127.0.0.1:7000")
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    assert pipeline.restart == Restart(3, 2_000, 60_000)
    raw, devices = pipeline.sources["raw"], pipeline.sources["devices"]
    assert raw.topics == {"topic": "/default/sensors"}
    assert raw.options == {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "1000"}
    assert raw.is_stream
    assert not devices.is_stream
    readings = pipeline.steps["readings"]
    assert readings.inputs == ("raw",)
    assert readings.watermark == Watermark("at", "10 minutes")
    assert readings.deduplicate == Deduplicate(("id",))
    assert pipeline.steps["averages"].inputs == ("readings", "devices")
    assert pipeline.steps["rows"].arguments == {"gap": 3}
    table, topic = pipeline.sinks["table"], pipeline.sinks["topic"]
    assert table.trigger == Trigger(None)
    assert topic.trigger == Trigger(500)
    assert table.checkpoint == "checkpoints/averages/table"
    assert pipeline.is_stream(table)
    assert in_order(pipeline) == ["readings", "averages", "rows"]


def test_the_command_line_wins() -> None:
    given = Given("danube://127.0.0.1:7001", "elsewhere", {"input": "/default/other"})
    pipeline = read(GOOD, "p.toml", given)
    assert pipeline.url == "danube://127.0.0.1:7001"
    assert pipeline.sinks["topic"].checkpoint == "elsewhere/topic"
    assert pipeline.sources["raw"].topics == {"topic": "/default/other"}


def test_a_parameter_that_the_file_does_not_have() -> None:
    assert _problems(GOOD, inptu="/default/x") == [
        "--set inptu: the file has no parameter inptu; did you mean input?"
    ]
    found = _wrong('topic = "${input}"', 'topic = "/default/${imput}"')
    assert found.startswith("p.toml:18: there is no parameter imput; did you mean input?")


@pytest.mark.parametrize(
    ("old", "new", "at", "sentence"),
    [
        ('trigger = "500ms"', 'trigger = "often"', 'trigger = "often"', "it must be \"fastest\""),
        ('trigger = "500ms"', "triger = 1", "triger", "did you mean trigger?"),
        ("danube://127.0.0.1:7000", "http://x", "http://x", "danube://"),
        ('checkpoint = "checkpoints/averages"\n', "", "", "checkpoint is missing"),
        ("attempts_max = 3", 'attempts_max = "three"', "attempts_max", "it must be a whole number"),
        ('first_delay = "2s"', 'first_delay = "2 moons"', "first_delay", 'such as "500ms"'),
        ('table = "tables/devices"', 'tabel = "x"\ntopic = "/default/d"', "tabel", "did you mean table?"),
        ('table = "tables/devices"', 'table = "t"\ntopic = "/default/d"', "[source.devices]", "exactly one of"),
        ('table = "tables/devices"', 'table = "s3://b/t"', "s3://", "folder that all executors see"),
        ('table = "tables/devices"', 'table = "t"\nformat = "orc"', "orc", "one of parquet, delta, iceberg"),
        ('table = "tables/devices"', 'table = "t"\nstream = true', "stream = true", "schema is given"),
        ("FROM raw", "FROM rwa", "FROM rwa", "there is no source or step rwa; did you mean raw?"),
        ("JOIN devices", "JOIN device", "JOIN device", "did you mean devices?"),
        ('inputs = ["averages"]', 'inputs = ["average"]', "inputs", "did you mean averages?"),
        ("reading:read", "reading.read", "reading.read", '"package.module:function"'),
        ('delay = "10 minutes"', 'delay = "10"', "watermark", 'delay = "10 minutes"'),
        ('from = "rows"', 'from = "row"', 'from = "row"', "did you mean rows?"),
        ('topic = "/default/averages"', 'topic = "averages"', 'topic = "averages"', "averages"),
        ('mode = "append"', 'mode = "upsert"', "upsert", "delta and iceberg"),
        ('mode = "append"', 'mode = "overwrite"', "overwrite", "batch sinks"),
        ('mode = "append"', 'mode = "update"', 'mode = "update"', "not for topics"),
        ('mode = "append"', 'mode = "some"', 'mode = "some"', "one of append"),
        ('format = "delta"\n', 'mode = "update"\n', 'mode = "update"', "upsert"),
        ('mode = "append"', 'options = { compresion = "zstd" }', "compresion", "compression"),
        ('startingOffsets = "earliest"', 'startingOfsets = "earliest"', "Ofsets", "startingOffsets"),
        ('mode = "append"', 'after = ["tabel"]', "after", "did you mean table?"),
        ('mode = "append"', 'partition_by = ["a"]', 'partition_by = ["a"]', "for tables"),
        ('mode = "append"', 'checkpoint = "checkpoints/averages/table"', "checkpoints/averages/table", "its own"),
    ],
)  # fmt: skip
def test_every_mistake_names_its_line_and_the_fix(
    old: str, new: str, at: str, sentence: str
) -> None:
    found = _wrong(old, new)
    line = f":{_line(GOOD.replace(old, new, 1), at)}" if at else ""
    assert found.startswith(f"p.toml{line}: "), found
    assert sentence in found


def test_all_mistakes_are_named_at_once() -> None:
    text = GOOD.replace("FROM raw", "FROM rwa").replace('mode = "append"', "mood = 1")
    assert len(_problems(text)) == 2


def test_what_is_not_toml_names_its_line() -> None:
    assert _problems('name = "a"\nurl = \n')[0].startswith("p.toml:2: this is not TOML")


def test_steps_in_a_circle() -> None:
    text = GOOD.replace("FROM raw", "FROM averages")
    where = f"p.toml:{_line(GOOD, '[step.readings]')}"
    circle = "readings -> averages -> readings"
    assert _problems(text) == [f"{where}: these steps read each other in a circle: {circle}"]


def test_a_source_and_a_step_of_one_name() -> None:
    text = GOOD + '\n[step.raw]\nfrom = "readings"\n'
    assert "raw is a source and a step" in _problems(text)[0]


def test_a_file_without_a_sink() -> None:
    text = GOOD[: GOOD.index("[sink.table]")]
    assert "there is no sink" in _problems(text)[0]


def test_queries_wait_for_what_they_read() -> None:
    text = """\
checkpoint = "c"
[source.a]
topic = "/default/a"
[source.b]
topic = "/default/b"
[source.t]
table = "t"
[step.joined]
sql = "SELECT b.* FROM b JOIN t ON b.key = t.key"
[sink.last]
from = "joined"
console = true
[sink.first]
from = "a"
topic = "/default/b"
[sink.tables]
from = "a"
table = "t"
"""
    pipeline = read(text, "p.toml")
    assert needs(pipeline, is_once=False) == {
        "last": {"first": "started", "tables": "progressed"},
        "first": {},
        "tables": {},
    }
    assert needs(pipeline, is_once=True)["last"] == {"first": "finished", "tables": "finished"}


def test_the_drawing_shows_every_sink_with_what_it_rests_on() -> None:
    assert (
        draw(read(GOOD, "p.toml"))
        == """\
sink table -> table tables/averages (delta, append)
└─ step averages: sql
   ├─ step readings: sql, watermark at 10 minutes, without duplicates by id
   │  └─ source raw <- topic /default/sensors, stream
   └─ source devices <- table tables/devices (parquet), batch
sink topic -> topic /default/averages (append)
└─ step rows: python danubius.pipeline.reading:read
   └─ step averages: sql  (see above)"""
    )


def test_sql_reads_views_in_any_case_and_two_cannot_differ_by_it_alone() -> None:
    text = """checkpoint = "c"
[source.Orders]
topic = "/default/orders"
[step.big]
sql = "SELECT * FROM (orders JOIN ORDERS), Orders"
[sink.out]
from = "big"
console = true
"""
    assert read(text, "p.toml").steps["big"].inputs == ("Orders",)
    with pytest.raises(InvalidPipeline, match=r"p.toml:4: Orders and orders are one name for SQL"):
        read(text.replace("step.big", "step.orders").replace('"big"', '"orders"'), "p.toml")
