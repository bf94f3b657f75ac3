"""Offloading while the object store is down, forgetful or wrong, and while clocks jump: nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from danubius.errors import DanubiusError, StorageFailed, StorageFull, TierMisconfigured
from danubius.ledger.core.damage import DamagedRange
from danubius.ledger.entry import Chunk
from danubius.model.policy import Policies
from danubius.shard.state.facts import TopicChanged, TopicRemoved
from danubius.tier.offload import Owner
from property.broker_lives import ROOT, must_succeed
from property.tier_lives import CONFIG, STORE_ID, TierLives

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def lives() -> Iterator[TierLives]:
    made = TierLives()
    made.boot()
    yield made
    made.loop.close()


def read(lives: TierLives, at: int) -> Chunk | DanubiusError:
    answers: list[Chunk | DanubiusError] = []
    lives.log.read(at, 1 << 20, answers.append)
    while not answers:
        lives.threads.turn(lives.clock.monotonic_ns())
        lives.deliver()
    return answers[0]


def offload(lives: TierLives, count: int = 40) -> None:
    lives.publish(count)
    lives.settle()
    lives.offload_all()
    assert any(not meta.is_local for meta in lives.log.ledgers)


def forget_cache(lives: TierLives) -> None:
    """A new process, whose memory is empty."""
    lives.files.kill()
    lives.boot()


def test_a_store_that_is_down_holds_up_nothing_and_is_taken_up_again(lives: TierLives) -> None:
    lives.objects.go_down()
    lives.publish(40)
    lives.settle()
    lives.cycle(3)
    assert len(lives.sent) == 40
    assert isinstance(lives.offloading.failure, StorageFailed)
    assert not lives.stored()
    lives.objects.come_up()
    lives.clock.now_ms += 60_000
    lives.offload_all()
    assert lives.offloading.failure is None
    lives.compare()
    lives.check_places()


def test_a_failure_is_over_with_the_store_back_even_if_there_is_nothing_to_move(
    lives: TierLives,
) -> None:
    lives.cycle()
    lives.objects.go_down()
    lives.cycle(2)
    assert lives.offloading.problem
    lives.objects.come_up()
    lives.clock.now_ms += 60_000
    lives.cycle(2)
    assert not lives.offloading.problem


def test_uploads_that_fail_are_a_failure_though_the_store_can_be_read(lives: TierLives) -> None:
    lives.publish(40)
    lives.settle()

    def refuse(name: str) -> None:
        if not name.endswith("owner"):
            raise TierMisconfigured("this key may not write")

    lives.objects.before["put"] = refuse
    lives.cycle(6)
    assert "may not write" in lives.offloading.problem
    del lives.objects.before["put"]
    lives.clock.now_ms += 60_000
    lives.offload_all()
    assert not lives.offloading.problem


def test_uploads_give_way_to_publishers_but_not_to_an_operator() -> None:
    lives = TierLives(config=msgspec.structs.replace(CONFIG, upload_share_percent=25))
    lives.boot()
    pace = lives.work.pace

    def publish_for_a_second() -> None:
        lives.publish(60, size=1_000_000)
        lives.settle()
        lives.clock.now_ms += 1000
        lives.offloading.tick()

    lives.offloading.tick()
    publish_for_a_second()
    # A quarter of 60 MB, in a second and what it took to store them.
    assert 10_000_000 < pace.bytes_per_s < 15_100_000
    lives.clock.now_ms += 1000
    lives.offloading.tick()
    assert pace.bytes_per_s == 0, "nobody publishes"
    publish_for_a_second()
    lives.offloading.force(lives.topic, lives.log.end_offset)
    assert pace.bytes_per_s == 0, "an operator waits"
    publish_for_a_second()
    assert pace.bytes_per_s == 0, "and still does"
    lives.loop.close()


def test_a_store_that_is_down_is_asked_less_and_less_often(lives: TierLives) -> None:
    lives.publish(40)
    lives.settle()
    lives.objects.go_down()
    before = lives.objects.calls.total()
    lives.cycle(10)
    first = lives.objects.calls.total() - before
    lives.cycle(10)
    assert lives.objects.calls.total() - before - first <= first


def test_reads_of_cold_messages_fail_while_the_store_is_down_and_work_again_after(
    lives: TierLives,
) -> None:
    offload(lives)
    forget_cache(lives)
    lives.objects.go_down()
    assert isinstance(read(lives, 0), StorageFailed)
    lives.objects.come_up()
    lives.compare()


def test_wrong_credentials_are_told_and_everything_stays_on_disk(lives: TierLives) -> None:
    lives.objects.failure = lambda: TierMisconfigured("the access key is not known")
    lives.objects.go_down()
    forget_cache(lives)
    lives.publish(40)
    lives.settle()
    lives.cycle(2)
    assert isinstance(lives.offloading.failure, TierMisconfigured)
    assert all(meta.is_local for meta in lives.log.ledgers)
    lives.compare()


@pytest.mark.parametrize("number", range(1, 14))
def test_an_error_at_any_call_of_an_upload_is_repeated(number: int) -> None:
    lives = TierLives()
    lives.boot()
    lives.publish(24)
    lives.settle()
    lives.objects.fail_at(number)
    lives.offload_all()
    lives.compare()
    lives.check_places()
    lives.loop.close()


def test_an_error_in_the_middle_of_an_upload_leaves_no_object_and_is_repeated(
    lives: TierLives,
) -> None:
    lives.publish(40)
    lives.settle()
    lives.objects.tear_next_put(5000)
    lives.offload_all()
    assert lives.offloading.figures.failures >= 1
    lives.compare()
    lives.check_places()


def test_a_lost_answer_to_a_put_is_no_second_object(lives: TierLives) -> None:
    lives.publish(40)
    lives.settle()
    lives.objects.keep_next_put_and_fail()
    lives.offload_all()
    lives.compare()
    lives.check_places()


def test_an_acknowledged_put_that_was_lost_is_noticed_before_anything_is_deleted(
    lives: TierLives,
) -> None:
    lives.publish(40)
    lives.settle()
    lives.objects.lose_next_put()
    lives.offload_all()
    lives.compare()
    lives.check_places()


def test_an_object_that_is_lost_after_it_was_verified_is_stored_again_from_disk(
    lives: TierLives,
) -> None:
    keep(lives)
    lives.publish(40)
    lives.settle()
    lives.cycle(4)
    name = lives.log.ledgers[0].object_name
    assert lives.log.ledgers[0].is_local
    lives.memory.delete(name)
    keep(lives, 0)
    lives.offload_all()
    assert name in lives.stored()
    forget_cache(lives)
    lives.compare()
    lives.check_places()


def test_that_an_object_is_lost_is_known_to_whoever_replays(lives: TierLives) -> None:
    keep(lives)
    lives.publish(40)
    lives.settle()
    lives.cycle(4)
    lives.memory.delete(lives.log.ledgers[0].object_name)
    keep(lives, 0)
    lives.objects.fail_at(1, "put")  # so that it is not stored again at once
    for _ in range(100):
        lives.clock.now_ms += 1000
        lives.offloading.tick()
        lives.settle()
        if not lives.log.ledgers[0].object_name:
            break
    assert not lives.log.ledgers[0].object_name
    lives.check_replay()


def keep(lives: TierLives, local_age_ms: int = -1) -> None:
    """Let files stay, or go, once their ledgers have objects."""
    policies = Policies(offload_age_ms=0, local_age_ms=local_age_ms)
    lives.shard.commit(TopicChanged(lives.topic.id, policies), must_succeed)
    lives.settle()


def test_damage_on_the_way_from_the_store_is_read_again_and_never_delivered(
    lives: TierLives,
) -> None:
    offload(lives)
    forget_cache(lives)
    lives.objects.flip_reads(3000, times=1)
    lives.compare()
    assert lives.cold_store.counts.rereads == 1


@pytest.mark.parametrize("cut", [1, 128, 300, 10_000, 60_000])
def test_truncated_reads_are_read_again(lives: TierLives, cut: int) -> None:
    offload(lives)
    forget_cache(lives)
    lives.objects.cut_reads(cut, times=1)
    lives.compare()
    assert lives.cold_store.counts.rereads == 1


def test_damage_in_the_index_of_an_object_is_read_again(lives: TierLives) -> None:
    offload(lives)
    forget_cache(lives)
    meta = lives.log.ledgers[0]
    lives.objects.flip_reads(meta.data_bytes + 5, times=1)
    lives.compare()
    assert lives.log.ledgers[0].index_entries == meta.index_entries


def test_lasting_damage_in_the_index_of_an_object_costs_no_message(lives: TierLives) -> None:
    offload(lives)
    forget_cache(lives)
    lives.objects.flip_reads(lives.log.ledgers[0].data_bytes + 5)
    lives.compare()


def test_lasting_damage_in_an_object_is_a_damaged_range_and_the_rest_is_served(
    lives: TierLives,
) -> None:
    offload(lives)
    forget_cache(lives)
    lives.objects.flip_reads(3000)
    found = read(lives, 1)
    assert isinstance(found, DamagedRange)
    behind = read(lives, found.end)
    assert isinstance(behind, Chunk)


def test_a_damaged_block_on_disk_is_read_from_the_object_while_there_are_both(
    lives: TierLives,
) -> None:
    keep(lives)
    lives.publish(40)
    lives.settle()
    lives.cycle(4)
    forget_cache(lives)
    assert lives.log.ledgers[0].is_local
    assert lives.log.ledgers[0].object_name
    for directory in ("ledgers/pool", f"ledgers/{lives.topic.id & 0xFF:02x}"):
        rot(lives, directory)
    lives.compare()
    assert lives.cold_store.counts.rereads >= 1


def rot(lives: TierLives, directory: str) -> None:
    path = ROOT / directory
    for name in lives.files.listdir(path) if lives.files.exists(path) else []:
        if name.endswith((".ledger", ".pool")):
            lives.files.rot(path / name, 3000)


def test_a_damaged_ledger_is_not_offloaded_and_stays_as_it_is(lives: TierLives) -> None:
    lives.publish(40)
    lives.settle()
    lives.advance()
    for directory in ("ledgers/pool", f"ledgers/{lives.topic.id & 0xFF:02x}"):
        rot(lives, directory)
    lives.cycle(4)
    damaged = [meta for meta in lives.log.ledgers if meta.is_sealed and not meta.object_name]
    assert damaged
    assert all(meta.is_local for meta in damaged)
    assert any(meta.object_name for meta in lives.log.ledgers)
    assert lives.offloading.figures.failures >= 1


def test_a_newer_life_with_the_same_store_id_fences_this_one(lives: TierLives) -> None:
    offload(lives)
    other = msgspec.json.encode(Owner(lives.epoch + 1, "another"))
    lives.memory.put(f"{STORE_ID}/owner", [other], replace=True)
    objects = lives.stored()
    lives.publish(30)
    lives.trim(lives.log.ledgers[1].base_offset)
    lives.cycle(4)
    assert lives.offloading.is_fenced
    assert lives.stored() == objects, "nothing was stored or removed"
    lives.compare()
    lives.publish(5)
    lives.settle()
    assert len(lives.sent) == lives.log.end_offset - lives.log.start_offset


def test_a_life_that_is_not_newer_than_the_owner_does_not_begin(lives: TierLives) -> None:
    other = msgspec.json.encode(Owner(lives.epoch + 1, "another"))
    lives.memory.put(f"{STORE_ID}/owner", [other], replace=True)
    lives.files.kill()
    lives.boot()  # with the same epoch as the other's
    lives.publish(40)
    lives.settle()
    lives.cycle(3)
    assert lives.offloading.is_fenced
    assert not lives.stored()


def test_the_owner_is_looked_at_before_each_removal(lives: TierLives) -> None:
    offload(lives)
    names = lives.stored()
    lives.trim(lives.log.ledgers[2].base_offset)
    other = msgspec.json.encode(Owner(lives.epoch + 1, "another"))

    def taken_over(_name: str) -> None:
        lives.objects.before.pop("delete")
        lives.memory.put(f"{STORE_ID}/owner", [other], replace=True)

    lives.objects.before["delete"] = taken_over
    lives.cycle(3)
    assert len(names - lives.stored()) == 1, "the one that was under way, and no other"
    assert lives.offloading.is_fenced


def test_objects_of_a_deleted_topic_go_and_failures_are_repeated(lives: TierLives) -> None:
    offload(lives)
    lives.objects.fail_at(1, "delete")
    lives.objects.fail_at(3, "delete")
    lives.shard.commit(TopicRemoved(lives.topic.id), must_succeed)
    lives.settle()
    for _ in range(20):
        lives.clock.now_ms += 5000
        lives.offloading.tick()
        lives.settle()
    assert lives.stored() == set()


@pytest.mark.parametrize("jump_ms", [-(10**9), 10**9])
def test_a_clock_that_jumps_moves_ledgers_early_or_late_and_loses_none(
    lives: TierLives, jump_ms: int
) -> None:
    lives.publish(20)
    lives.settle()
    wall = lives.clock.wall_us
    lives.clock.wall_us = lambda: max(1, wall() + jump_ms * 1000)
    lives.publish(20)
    lives.settle()
    lives.cycle(4)
    lives.compare()
    lives.clock.wall_us = wall
    lives.offload_all()
    lives.cycle(2)
    lives.compare()
    lives.check_places()


def test_an_idle_store_is_asked_once_a_cycle_and_no_more(lives: TierLives) -> None:
    lives.cycle(2)
    before = lives.objects.calls.total()
    at_ms = lives.clock.now_ms
    while lives.clock.now_ms < at_ms + 10 * CONFIG.cycle_ms:
        lives.clock.now_ms += 100
        lives.offloading.tick()
        lives.settle()
    assert 9 <= lives.objects.calls.total() - before <= 11


def test_times_are_found_in_cold_ledgers(lives: TierLives) -> None:
    times: list[int] = []
    for _ in range(40):
        lives.clock.now_ms += 500
        times.append(lives.clock.wall_us())
        lives.publish()
        lives.settle()
    lives.offload_all()
    forget_cache(lives)
    for offset in (0, 3, 17, 25):
        answers: list[int | DanubiusError] = []
        lives.log.find_time(times[offset], answers.append)
        lives.settle()
        assert answers == [offset]


def test_publishing_is_refused_with_the_reason_when_the_disk_is_used_up_and_goes_on_after() -> None:
    lives = TierLives(config=msgspec.structs.replace(CONFIG, local_bytes_max=60_000))
    lives.boot()
    lives.objects.go_down()
    lives.publish(40)
    lives.settle()
    lives.cycle(2)
    with pytest.raises(StorageFull, match="does not answer"):
        lives.shard.pressure.check()
    lives.objects.come_up()
    lives.clock.now_ms += 60_000
    lives.cycle(4)
    lives.shard.pressure.check()
    lives.compare()
    lives.loop.close()


def test_what_is_kept_on_disk_goes_early_when_the_disk_is_nearly_full() -> None:
    lives = TierLives(config=msgspec.structs.replace(CONFIG, local_bytes_max=100_000))
    lives.boot()
    keep(lives)
    lives.publish(60)
    lives.settle()
    lives.cycle(6)
    assert any(not meta.is_local for meta in lives.log.ledgers)
    lives.compare()
    lives.loop.close()
