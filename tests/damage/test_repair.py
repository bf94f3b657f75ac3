"""A repaired journal on a simulated disk: the next start succeeds, and all that was not named is there."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import danubius
from damage.damages import Target, empty, journal, missing, named
from damage.templates import LARGE, PRODUCER, SMALL, template
from damage.trial import Findings, read
from damage.worlds import DATA, World
from danubius.app.repair import JournalRepair
from danubius.cli.commands.storage_repair import describe, repair
from danubius.errors import DanubiusError, DataDirectoryDamaged
from danubius.ledger.managed import ManagedLedger
from danubius.runtime.files import LocalFiles

if TYPE_CHECKING:
    from pathlib import Path

    from damage.templates import Known, Template
    from damage.worlds import Broker, Image
    from danubius.app.repair import Diagnosis

SEEDS = 40
ALL = Target("journal", named("data/journal/"), "data/journal/")


class Repaired:
    """A world after its repair, and what was said before it."""

    def __init__(self, image: Image) -> None:
        self.world = World("local", image)
        self.work = JournalRepair(DATA, self.world._disk)
        self.found: Diagnosis = self.work.diagnose()
        assert self.world.image() == {
            name: data for name, data in image.items() if not name.endswith("/")
        }, "looking changes nothing"
        if not self.found.is_sound:
            self.work.mend(self.found, "moment", "\n".join(describe(self.found)))


@pytest.fixture(scope="module")
def history() -> Template:
    return template("local", is_killed=True)


async def check(
    broker: Broker, found: Diagnosis, known: Known, *, is_end_hurt: bool = False
) -> None:
    """Everything is there but what was named, and what was named is told by the reads.

    Nothing tells where a journal ended whose newest file was hurt, which every report says.
    """
    lost = {topic: set[int]() for topic in known.messages}
    for one in found.plan.messages:
        lost[one.topic].update(range(one.first, one.end))
    for topic, next_offset in found.plan.doubtful:
        lost[topic].update(range(next_offset, len(known.messages[topic])))
    for name, sent in known.messages.items():
        topic = broker.shard.topic(name)
        assert isinstance(topic.log, ManagedLedger)
        topic.log.check()
        topic.pipeline.sequencer.check()
        said = Findings([])
        messages = await read(topic, said)
        if is_end_hurt:
            lost[name].update(range(topic.log.end_offset, len(sent)))
        there = {at: payload for at, payload in enumerate(sent) if at not in lost[name]}
        assert {at: messages[at] for at in messages if at < len(sent)} == there, name
        named_here = [one for one in found.plan.messages if one.topic == name]
        assert len(said.sentences) == len(named_here), said.sentences
        for one in named_here:
            words = f"messages {one.first} to {one.end - 1} are damaged"
            assert any(words in sentence for sentence in said.sentences)


async def starts(image: Image) -> bool:
    try:
        async with World("local", image).broker():
            return True
    except DanubiusError:
        return False


def hurt(image: Image, dice: random.Random) -> Image:
    """One to four of the things that happen to journal files, anywhere."""
    files = [name for name in image if name.endswith(".journal")]
    for _ in range(dice.randrange(1, 5)):
        name = dice.choice(files)
        data = bytearray(image.get(name, b""))
        match dice.randrange(6):
            case 0:
                image = {other: content for other, content in image.items() if other != name}
                continue
            case 1:
                del data[dice.randrange(len(data) + 1) :]
            case 2:
                at = dice.randrange(len(data) + 1)
                data[at : at + dice.randrange(5000)] = b""
            case 3:
                data[:4096] = bytes(min(4096, len(data)))
            case _:
                at, count = dice.randrange(len(data) + 1), dice.choice([1, 8, 500, 20_000])
                data[at : at + count] = dice.randbytes(len(data[at : at + count]))
        image = image | {name: bytes(data)}
    return image


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_damage_is_repaired_and_only_what_was_named_is_lost(
    history: Template, seed: int
) -> None:
    image = hurt(history.image, random.Random(seed))
    one = Repaired(image)
    if await starts(image):
        assert one.found.is_sound, "what a start would have recovered is not given up"
        return
    [newest] = journal("newest")(history.image)
    is_end_hurt = image.get(newest) != history.image[newest]
    for _ in range(2):
        async with one.world.broker() as broker:
            await check(broker, one.found, history.known, is_end_hurt=is_end_hurt)
            await broker.end()
    assert JournalRepair(DATA, one.world._disk).diagnose().is_sound


async def test_the_files_as_they_were_are_kept_with_a_report(history: Template) -> None:
    target = Target("middle", journal("middle"))
    [name] = target.select(history.image)
    bad = history.image[name][:30_000]
    one = Repaired(history.image | {name: bad})
    after = one.world.image()
    assert after[f"data/quarantine/moment/journal/{name.rpartition('/')[2]}"] == bad
    assert b"given up" in after["data/quarantine/moment/given-up.txt"]
    untouched = {other: data for other, data in history.image.items() if other != name}
    assert {other: after[other] for other in untouched} == untouched


async def test_offsets_and_sequences_go_on_behind_what_is_lost(history: Template) -> None:
    one = Repaired(missing(history, Target("first", journal("first"))))
    lost = {each.topic: (each.first, each.end) for each in one.found.plan.messages}
    assert {SMALL, LARGE} <= lost.keys()
    assert {each.topic for each in one.found.plan.sequences} >= {SMALL, LARGE}
    async with one.world.broker() as broker:
        for topic, sequence in history.known.sequences.items():
            sequencer = broker.shard.topic(topic).pipeline.sequencer
            producer = sequencer.producer_or_none(PRODUCER)
            assert producer is not None
            assert producer.committed_next == sequence
            assert sequencer.next_offset == len(history.known.messages[topic])


async def test_acknowledgements_behind_a_gap_tell_of_messages_in_it(history: Template) -> None:
    """Or a new message would get an offset that counts as acknowledged, and be delivered to nobody."""
    one = Repaired(empty(history, Target("middle", journal("middle"))))
    async with one.world.broker() as broker:
        for topic in broker.shard.topics.values():
            for subscription in topic.subscriptions.values():
                cursor = subscription.cursor
                assert (
                    max([cursor.floor, *(end for _, end in cursor.above)]) <= topic.log.end_offset
                )


async def test_a_journal_that_is_gone_begins_anew_where_the_snapshot_is(history: Template) -> None:
    one = Repaired(missing(history, ALL))
    assert {topic for topic, _ in one.found.plan.doubtful} >= history.known.messages.keys()
    async with one.world.broker() as broker:
        await check(broker, one.found, history.known)


async def test_a_sound_journal_is_left_alone(history: Template) -> None:
    one = Repaired(history.image)
    assert one.found.is_sound
    assert one.world.image() == history.image
    assert "nothing to repair" in describe(one.found)[0]


def test_without_a_snapshot_nothing_is_guessed(history: Template) -> None:
    image = without(history.image, "data/snapshots/")
    with pytest.raises(DataDirectoryDamaged, match="which topics there are is not known"):
        Repaired(image)


async def young() -> Image:
    """A directory whose journal has every record since the first, stopped in good order."""
    world = World("local")
    async with world.broker(listens=True) as broker:
        async with danubius.connect(broker.url) as client, client.producer(SMALL) as producer:
            await producer.send_many([b"one", b"two"])
        await broker.end()
    return world.image()


def without(image: Image, folder: str) -> Image:
    return {name: data for name, data in image.items() if not name.startswith(folder)}


async def test_a_journal_since_the_first_record_makes_up_for_lost_snapshots() -> None:
    image = without(await young(), "data/snapshots/")
    assert not await starts(image)
    one = Repaired(image)
    said = describe(one.found)
    assert "snapshots are missing" in said[0]
    assert "nothing is given up" in said
    after = one.world.image()
    assert after["data/quarantine/moment/danubius.json"] == image["data/danubius.json"]
    for _ in range(2):
        async with one.world.broker() as broker:
            topic = broker.shard.topic(SMALL)
            assert list((await read(topic, Findings([]))).values()) == [b"one", b"two"]
            await broker.end()
    assert JournalRepair(DATA, one.world._disk).diagnose().is_sound


async def test_neither_journal_nor_snapshots_are_said_not_called_sound() -> None:
    image = without(without(await young(), "data/snapshots/"), "data/journal/")
    with pytest.raises(DataDirectoryDamaged, match="neither a journal nor a snapshot"):
        Repaired(image)


def test_the_journal_of_another_broker_is_not_taken_for_a_damaged_one(history: Template) -> None:
    image = missing(history, ALL) | {
        name: history.other[name] for name in ALL.select(history.other)
    }
    with pytest.raises(DataDirectoryDamaged, match="do not belong together"):
        Repaired(image)


# ---------------------------------------------------------------- the command


@pytest.fixture
def damaged(history: Template, tmp_path: Path) -> Path:
    World("local", missing(history, Target("middle", journal("middle"))), tmp_path)
    return tmp_path / "data"


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(each): each.read_bytes()
        for each in path.rglob("*")
        if each.is_file() and each.name != "lock"
    }


def test_a_dry_run_says_it_and_changes_nothing(damaged: Path) -> None:
    before = contents(damaged)
    result = CliRunner().invoke(
        repair, ["--data-dir", str(damaged), "--dry-run"], standalone_mode=False
    )
    assert result.return_value == 1
    assert "given up:" in result.output
    assert "/default/parts-part-1: messages" in result.output
    assert contents(damaged) == before


def test_nothing_is_done_without_a_yes(damaged: Path) -> None:
    before = contents(damaged)
    result = CliRunner().invoke(repair, ["--data-dir", str(damaged)], input="n\n")
    assert result.exit_code == 1
    assert contents(damaged) == before


async def test_the_command_repairs_a_directory_that_a_broker_then_takes_up(damaged: Path) -> None:
    result = CliRunner().invoke(
        repair, ["--data-dir", str(damaged), "--yes", "--json"], standalone_mode=False
    )
    assert result.return_value == 0, result.output
    assert '"topic":"/default/parts-part-1"' in result.output
    assert (damaged / "quarantine").is_dir()
    async with World("local", {}, damaged.parent).broker() as broker:
        assert broker.shard.topic(SMALL).log.end_offset > 0


def test_a_directory_that_a_broker_has_is_not_touched(damaged: Path) -> None:
    held = LocalFiles().lock(damaged / "lock")
    try:
        result = CliRunner().invoke(repair, ["--data-dir", str(damaged)])
        assert isinstance(result.exception, DanubiusError)
        assert "in use" in str(result.exception)
    finally:
        held.release()
