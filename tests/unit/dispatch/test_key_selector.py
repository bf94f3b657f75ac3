"""Who owns a key: stickiness, filters, and how many keys move when consumers come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from danubius.dispatch.core.consumers import Consumer
from danubius.dispatch.core.key_selector import KeySelector
from danubius.model.key_filters import KeyFilter

if TYPE_CHECKING:
    import pytest

KEYS = [b"key-%d" % n for n in range(2000)]


def selector_of(filters: list[tuple[str, ...]]) -> tuple[KeySelector, list[Consumer]]:
    selector = KeySelector()
    consumers = [Consumer(n, f"worker-{n}", 0, one) for n, one in enumerate(filters)]
    for one in consumers:
        selector.join(one)
    return selector, consumers


def owners(selector: KeySelector) -> dict[bytes, int | None]:
    found = {key: selector.owner_of(key) for key in KEYS}
    return {key: None if one is None else one.consumer_id for key, one in found.items()}


some_filters = st.lists(
    st.sampled_from([(), (), ("key-1*",), ("key-?",), ("*5",), ("key-1*", "key-2*")]),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(some_filters, st.data())
def test_the_fewest_keys_move_when_a_consumer_joins_or_leaves(
    filters: list[tuple[str, ...]], data: st.DataObject
) -> None:
    selector, consumers = selector_of(filters)
    before = owners(selector)
    newcomer = Consumer(100, "newcomer", 0, data.draw(st.sampled_from(filters)))
    selector.join(newcomer)
    joined = owners(selector)
    moved = {key for key in KEYS if before[key] != joined[key]}
    # The least there can be: what the newcomer has now, and nothing from one old consumer to another.
    assert moved == {key for key in KEYS if joined[key] == 100}
    leaver = data.draw(st.sampled_from(consumers))
    selector.leave(leaver)
    left = owners(selector)
    moved = {key for key in KEYS if joined[key] != left[key]}
    assert moved == {key for key in KEYS if joined[key] == leaver.consumer_id}


def test_a_newcomer_gets_about_its_share_and_nobody_has_much_more() -> None:
    selector, _ = selector_of([()] * 15)
    before = owners(selector)
    selector.join(Consumer(100, "newcomer", 0))
    after = owners(selector)
    moves = sum(before[key] != after[key] for key in KEYS)
    fair = len(KEYS) / 16
    assert moves <= 1.6 * fair
    shares = [sum(one == owner for one in after.values()) for owner in {*after.values()}]
    assert len(shares) == 16
    assert max(shares) <= 1.6 * fair


def test_who_comes_back_under_its_name_has_its_keys_again() -> None:
    selector, consumers = selector_of([(), (), ("key-1*",), ()])
    before = owners(selector)
    selector.leave(consumers[2])
    selector.join(Consumer(50, "worker-2", 0, ("key-1*",)))
    assert owners(selector) == {key: 50 if one == 2 else one for key, one in before.items()}


def test_only_consumers_that_take_a_key_own_it() -> None:
    selector, _ = selector_of([("key-1*",), ("key-1*",), ("key-2*", "*9")])
    found = owners(selector)
    assert {found[key] for key in KEYS if key.startswith(b"key-1") and key[-1:] != b"9"} == {0, 1}
    assert found[b"key-2"] == found[b"key-309"] == 2
    assert found[b"key-3"] is None


def test_a_key_is_matched_once_until_the_consumers_change(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    original = KeyFilter.accepts

    def accepts(self: KeyFilter, key: bytes) -> bool:
        asked.append(key)
        return original(self, key)

    monkeypatch.setattr(KeyFilter, "accepts", accepts)
    selector, _ = selector_of([("key-1*",)] * 5)
    for _ in range(3):
        assert selector.owner_of(b"key-1") is not None
        assert selector.owner_of(b"else") is None
    assert asked == [b"key-1", b"else"], "once for all consumers with the same filters"
    selector.join(Consumer(100, "newcomer", 0))
    assert selector.owner_of(b"else") is not None
    assert asked == [b"key-1", b"else", b"else"]
