"""One start on a damaged image: what became of it, and what must never be.

Whatever happened to the files, of a start it holds that
- what was acknowledged can be read, or its loss is named: by the refusal, by the log, or by the error of the read;
- a start that is refused has changed and removed nothing, and with the good files put back everything is there;
- a start that succeeds has a higher epoch than any before, gives no offset twice, and the next one finds the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from damage.templates import PRODUCER, SUBSCRIPTION
from damage.worlds import World
from danubius.errors import DanubiusError, LedgerDamaged
from danubius.ledger.entry import Chunk
from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import TopicName
from danubius.record.encode import encode
from danubius.record.scan import iter_batches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from damage.templates import Known, Template
    from damage.worlds import Broker, Image
    from danubius.shard.hosting.topic import Topic

READ_BYTES: Final = 1 << 20
ANSWER_S: Final = 60.0
"""A read or a publish that has no answer by then hangs."""
WHOLE: Final = ("an older copy", "quarantine")
"""Words of a warning that is about everything."""
ALL_THERE: Final = "all there"
NAMED: Final = "named"
REFUSED: Final = "refused"


class Outcome(NamedTuple):
    """What a start made of it."""

    word: str
    sentences: list[str]
    """Of the refusal, or those that name what is lost."""
    violations: list[str]


class Findings:
    """What is there of what was acknowledged, and what was said of the rest."""

    def __init__(self, said: list[str]) -> None:
        self.said = said
        self.sentences: list[str] = []
        self.violations: list[str] = []
        self.messages: dict[str, dict[int, bytes]] = {}

    def lost(self, what: str, *witnesses: str) -> None:
        """Something is not there: someone must have named it."""
        named = [line for line in self.said if any(word in line for word in witnesses)]
        if named:
            self.sentences += [line for line in named if line not in self.sentences]
        else:
            self.violations.append(f"lost and not named: {what}")


async def attempt(template: Template, image: Image, root: Path | None = None) -> Outcome:
    """Start on an image, look at everything, and start again."""
    world = World(template.kind, image, root)
    try:
        async with world.broker() as broker:
            found = await examine(broker, world.said, template.known)
            found.violations += await publish(broker, template.known)
            await tend_cold_storage(broker)
            await broker.end()
    except DanubiusError as refusal:
        violations = unharmed(image, world.image())
        violations += await undo(template, image, world.image())
        return Outcome(REFUSED, [f"{type(refusal).__name__}: {refusal.message}"], violations)
    except Exception as error:  # noqa: BLE001  # that is what is looked for
        return Outcome(REFUSED, [], [f"not a sentence but {type(error).__name__}: {error}"])
    found.violations += await start_again(world, found)
    return Outcome(NAMED if found.sentences else ALL_THERE, found.sentences, found.violations)


def unharmed(before: Image, after: Image) -> list[str]:
    """A refused start leaves every byte where it was."""
    return [
        f"{'changed' if name in after else 'removed'} by a start that was refused: {name}"
        for name, data in before.items()
        if not name.endswith("/") and after.get(name) != data
    ]


async def undo(template: Template, damaged: Image, after: Image) -> list[str]:
    """Put back what was damaged, on what the refused start left."""
    good = template.image
    touched = {name for name in good.keys() | damaged if good.get(name) != damaged.get(name)}
    restored = {name: data for name, data in after.items() if name not in touched}
    restored |= {name: good[name] for name in touched if name in good}
    world = World(template.kind, restored)
    try:
        async with world.broker() as broker:
            found = await examine(broker, world.said, template.known)
            await broker.end()
    except DanubiusError as refusal:
        return [f"refused with the good files put back: {refusal.message}"]
    return [f"with the good files put back: {line}" for line in found.violations + found.sentences]


async def start_again(world: World, before: Findings) -> list[str]:
    """What could be read still can be."""
    try:
        async with world.broker() as broker:
            now = Findings(world.said)
            for name, messages in before.messages.items():
                found = await read(broker.shard.topics.get(TopicName(name)), now)
                for offset, payload in messages.items():
                    if found.get(offset) != payload:
                        now.violations.append(f"gone at the next start: {name} {offset}")
                        break
    except DanubiusError as refusal:
        return [f"the next start was refused: {refusal.message}"]
    return now.violations


# ---------------------------------------------------------------- what is there


async def examine(broker: Broker, said: list[str], known: Known) -> Findings:
    found = Findings(said)
    if broker.epoch <= known.epoch:
        found.violations.append(f"epoch {broker.epoch} was used before, {known.epoch} was the last")
    for name, sent in known.messages.items():
        await _examine_messages(broker, found, name, sent)
    for name, acked in known.acked.items():
        _examine_cursor(broker, found, name, acked)
    for name, sequence in known.sequences.items():
        _examine_sequence(broker, found, name, sequence)
    committed = {n for first, end in broker.shard.committed_transactions for n in range(first, end)}
    if known.transactions - committed:
        found.lost(f"commits of {known.transactions - committed}", "transaction", *WHOLE)
    return found


async def _examine_messages(broker: Broker, found: Findings, name: str, sent: list[bytes]) -> None:
    topic = broker.shard.topics.get(TopicName(name))
    if topic is None:
        found.lost(f"topic {name}", name, *WHOLE)
        return
    before = len(found.sentences)
    messages = await read(topic, found)
    found.messages[name] = messages
    wrong = [at for at, payload in messages.items() if at < len(sent) and payload != sent[at]]
    if wrong:
        found.violations.append(f"other bytes at {wrong[0]} of {name}: {messages[wrong[0]][:40]!r}")
    gone = [at for at in range(len(sent)) if at not in messages]
    if gone and len(found.sentences) == before:
        found.lost(f"{len(gone)} messages of {name} from {gone[0]} on", name, *WHOLE)
    if topic.log.end_offset < len(sent) or topic.log.start_offset > 0:
        found.lost(f"{name} is [{topic.log.start_offset}, {topic.log.end_offset})", name, *WHOLE)


def _examine_sequence(broker: Broker, found: Findings, name: str, sequence: int) -> None:
    topic = broker.shard.topics.get(TopicName(name))
    producer = topic.pipeline.sequencer.producer_or_none(PRODUCER) if topic else None
    if topic and (producer is None or producer.committed_next != sequence):
        at = producer.committed_next if producer else None
        found.lost(f"the sequence of the producer of {name}: {at} and not {sequence}", name, *WHOLE)


def _examine_cursor(broker: Broker, found: Findings, name: str, acked: set[int]) -> None:
    topic = broker.shard.topics.get(TopicName(name))
    subscription = topic.subscriptions.get(SUBSCRIPTION) if topic else None
    if topic is None:
        return
    if subscription is None:
        found.lost(f"the subscription of {name}", name, *WHOLE)
        return
    end = max(topic.log.end_offset, max(acked) + 1)
    open_ranges = subscription.cursor.unacked(0, end)
    now = set(range(end)) - {at for first, last in open_ranges for at in range(first, last)}
    if now - acked:
        found.violations.append(f"acknowledged by nobody: {sorted(now - acked)[:5]} of {name}")
    if acked - now:
        found.lost(f"acknowledgements {sorted(acked - now)} of {name}", name, *WHOLE)


async def read(topic: Topic | None, found: Findings) -> dict[int, bytes]:
    """All that can be read; an error names what cannot, and is passed over."""
    messages: dict[int, bytes] = {}
    if topic is None:
        return messages
    at = topic.log.start_offset
    while at < topic.log.end_offset:
        chunk = await _answer(lambda done, at=at: topic.log.read(at, READ_BYTES, done))
        if isinstance(chunk, DanubiusError):
            sentence = f"{type(chunk).__name__}: {chunk.message}"
            if sentence not in found.sentences:
                found.sentences.append(sentence)
            at = _behind(topic, at, chunk)
            continue
        assert isinstance(chunk, Chunk)
        for buffer in chunk.buffers:
            for batch in iter_batches(buffer):
                messages |= dict(enumerate(batch.payloads(), batch.base_offset))
        at = chunk.end
    return messages


def _behind(topic: Topic, at: int, error: DanubiusError) -> int:
    if isinstance(error, LedgerDamaged) and error.end > at:
        return error.end
    assert isinstance(topic.log, ManagedLedger)
    return next(meta.end_offset for meta in topic.log.ledgers if meta.end_offset > at)


async def publish(broker: Broker, known: Known) -> list[str]:
    """A new message gets an offset that nobody was given before."""
    problems: list[str] = []
    for name, sent in known.messages.items():
        topic = broker.shard.topics.get(TopicName(name))
        if topic is None:
            continue
        batch = memoryview(encode([b"later"], publish_time_us=1))
        offset = await _answer(
            lambda done, t=topic, b=batch: t.pipeline.publish_unsequenced(b, done)
        )
        if isinstance(offset, DanubiusError):
            problems.append(f"{name} takes no messages: {offset.message}")
        elif offset < len(sent):
            problems.append(f"offset {offset} of {name} was given twice")
    return problems


async def tend_cold_storage(broker: Broker) -> None:
    for _ in range(3):
        await broker.offload()


async def _answer(ask: Callable[[Callable[[Any], None]], object]) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ask(answer.set_result)
    async with asyncio.timeout(ANSWER_S):
        return await answer
