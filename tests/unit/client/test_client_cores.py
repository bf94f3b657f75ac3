"""What the client decides: addresses, back-off, batching, ack ranges, credit."""

from __future__ import annotations

import itertools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.client.core.acks import RangeGatherer
from danubius.client.core.address import (
    BrokerAddress,
    dialable,
    parse_url,
    parse_urls,
    urls_of,
)
from danubius.client.core.batching import (
    Accumulator,
    Draft,
    check_columns,
    cut,
    message_size,
    message_sizes,
    split,
)
from danubius.client.core.credit import CreditWindow, Grant
from danubius.client.core.retry import (
    DELAY_MAX_S,
    FIRST_DELAY_S,
    STEADY_SESSION_S,
    Backoff,
    RedialPace,
    Verdict,
    judge_refusal,
)
from danubius.errors import (
    DanubiusError,
    HandleNotFound,
    InvalidArgument,
    InvalidBatch,
    MessageTooLarge,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    StorageFull,
    TopicDeleted,
)

# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("danube://127.0.0.1:6651", BrokerAddress("127.0.0.1", 6651)),
        ("danube://broker.example", BrokerAddress("broker.example", 6651)),
        ("danube://[::1]:7000", BrokerAddress("::1", 7000)),
        ("danube://localhost:1/", BrokerAddress("localhost", 1)),
    ],
)
def test_a_good_url_gives_host_and_port(url: str, address: BrokerAddress) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "no scheme"),
        ("localhost:6651", "no scheme"),
        ("http://localhost:6651", "scheme 'http'"),
        ("danube://", "no host"),
        ("danube://:6651", "no host"),
        ("danube://host:port", "not valid"),
        ("danube://host:70000", "not valid"),
        ("danube://host:0", "port 0"),
        ("danube://host:1/topic", "more than"),
        ("danube://user@host:1", "more than"),
        ("danube://host:1?x=1", "more than"),
        ("danube://[::1", "not valid"),
    ],
)
def test_a_bad_url_is_refused_with_advice(url: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint) as caught:
        parse_url(url)
    assert "danube://127.0.0.1:6651" in str(caught.value)


def test_an_address_is_written_back_as_it_is_read() -> None:
    for url in ("danube://h:1", "danube://[::1]:2"):
        assert parse_url(url).url == url


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("danube://a:1,b:2", ["danube://a:1", "danube://b:2"]),
        ("danube://a, b", ["danube://a:6651", "danube://b:6651"]),
        ("danube://a:1,danube://b:2/", ["danube://a:1", "danube://b:2"]),
        ("danube://[::1]:7,a:1,[::1]:7", ["danube://[::1]:7", "danube://a:1"]),
        ("danube://a:1", ["danube://a:1"]),
    ],
)
def test_a_url_may_name_several_hosts(url: str, found: list[str]) -> None:
    addresses = parse_urls(url)
    assert [address.url for address in addresses] == found
    assert parse_urls(urls_of(addresses)) == addresses


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("danube://a:1,", "a comma without a host"),
        ("danube://,a:1", "a comma without a host"),
        ("danube://a:1,,b:2", "a comma without a host"),
        ("danube://a:1,b:0", "port 0"),
        ("danube://a:1,http://b:2", "scheme 'http'"),
        ("danube://a:1,b:2/topic", "more than"),
        ("danube://user:secret@a:1,b:2", "more than"),
        ("a:1,b:2", "no scheme"),
        ("danube://" + ",".join(f"h{n}" for n in range(40)), "at most 32"),
    ],
)
def test_a_bad_host_among_several_is_refused_with_words(url: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint) as caught:
        parse_urls(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "danube://0.0.0.0:1", "danube://[::]:1", "danube://h:0", "h"])
def test_what_cannot_be_dialled_from_elsewhere_is_no_address(url: str) -> None:
    assert dialable(url) is None
    assert dialable("danube://h:1") == BrokerAddress("h", 1)


# ---------------------------------------------------------------- retry


def test_waits_double_up_to_the_bound() -> None:
    backoff = Backoff(lambda: 1.0, first_s=0.1, max_s=0.5)
    assert [backoff.next_delay_s() for _ in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.5])


def test_a_reset_starts_again_with_the_shortest_wait() -> None:
    backoff = Backoff(lambda: 1.0, first_s=0.1, max_s=0.5)
    backoff.next_delay_s()
    backoff.next_delay_s()
    backoff.reset()
    assert backoff.next_delay_s() == pytest.approx(0.1)


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 200))
def test_a_wait_is_never_zero_and_never_above_the_bound(draw: float, attempts: int) -> None:
    backoff = Backoff(lambda: draw)
    delays = [backoff.next_delay_s() for _ in range(attempts + 1)]
    assert all(0.02 < delay <= 1.0 for delay in delays)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (StorageFull(""), Verdict.RESEND),
        (Overloaded(""), Verdict.RESEND),
        (OutOfSequence(""), Verdict.REOPEN),
        (HandleNotFound(""), Verdict.REOPEN),
        (MessageTooLarge(""), Verdict.FAIL_BATCH),
        (InvalidBatch(""), Verdict.FAIL_BATCH),
        (ProducerFenced(""), Verdict.FAIL_PRODUCER),
        (TopicDeleted(""), Verdict.FAIL_PRODUCER),
    ],
)
def test_every_refusal_has_its_verdict(error: DanubiusError, verdict: Verdict) -> None:
    assert judge_refusal(error) is verdict


def test_sessions_that_die_at_once_are_dialled_ever_more_seldom() -> None:
    pace = RedialPace(lambda: 1.0)
    now_s, waits = 100.0, list[float]()
    for _ in range(8):
        pace.up(now_s)
        pace.lost(now_s + 0.01)
        waits.append(pace.next_delay_s())
        now_s += waits[-1] + 0.01
    assert waits[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert waits[-1] == DELAY_MAX_S


def test_a_session_that_lived_is_followed_by_a_short_wait() -> None:
    pace = RedialPace(lambda: 1.0)
    for _ in range(5):
        pace.next_delay_s()
    pace.up(10.0)
    pace.lost(10.0 + STEADY_SESSION_S)
    assert pace.next_delay_s() == FIRST_DELAY_S
    assert pace.next_delay_s() == 2 * FIRST_DELAY_S  # nobody answered: the long life counts once
    pace.up(20.0)
    pace.lost(20.0 + STEADY_SESSION_S / 2)
    assert pace.next_delay_s() == 4 * FIRST_DELAY_S


# ---------------------------------------------------------------- batching


def test_an_open_batch_keeps_columns_in_step() -> None:
    batch = Accumulator(1000, 10)
    assert batch.add(b"a", None, None, 1) == 0
    assert batch.add(b"b", b"k", None, 2) == 1
    assert batch.add(b"c", None, {"x": "y"}, 3) == 2
    assert batch.take() == Draft([b"a", b"b", b"c"], [None, b"k", None], [None, None, {"x": "y"}])
    assert batch.count == 0
    assert batch.size == 0


def test_payloads_alone_make_no_other_columns() -> None:
    batch = Accumulator(1000, 10)
    batch.add(b"a", None, None, 1)
    batch.add(b"b", None, {}, 1)
    assert batch.take() == Draft([b"a", b"b"], None, None)


def test_a_batch_is_full_by_bytes_or_by_records() -> None:
    by_bytes = Accumulator(3, 10)
    by_bytes.add(b"ab", None, None, 2)
    assert not by_bytes.is_full
    by_bytes.add(b"c", None, None, 1)
    assert by_bytes.is_full
    by_records = Accumulator(1000, 2)
    by_records.add(b"", None, None, 0)
    assert not by_records.is_full
    by_records.add(b"", None, None, 0)
    assert by_records.is_full
    by_records.take()
    assert not by_records.is_full


def test_the_first_message_always_has_room() -> None:
    batch = Accumulator(3, 10)
    assert batch.has_room(100)
    batch.add(b"a", None, None, 1)
    assert batch.has_room(2)
    assert not batch.has_room(3)


@given(
    st.lists(st.integers(0, 50), max_size=200),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_split_covers_everything_within_the_bounds(
    sizes: list[int], bytes_max: int, records_max: int
) -> None:
    cuts = split(sizes, bytes_max, records_max)
    edges = [0, *cuts]
    assert edges[-1] == len(sizes)
    for start, stop in pairwise(edges):
        assert start < stop
        assert stop - start <= records_max
        assert sum(sizes[start:stop]) <= bytes_max or stop - start == 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=100), st.integers(1, 60))
def test_split_makes_batches_as_large_as_they_may_be(sizes: list[int], bytes_max: int) -> None:
    cuts = split(sizes, bytes_max, 1000)
    starts = [0, *cuts[:-1]]
    for start, stop in zip(starts[:-1], cuts[:-1], strict=True):
        assert sum(sizes[start : stop + 1]) > bytes_max


def test_a_message_counts_with_its_key_and_attributes() -> None:
    assert message_size(b"abc", None, None) == 3
    assert message_size(b"abc", b"kk", {"ä": "xyz"}) == 3 + 2 + 2 + 3
    draft = Draft([b"a", b"bb"], [None, b"k"], None)
    assert message_sizes(draft) == [1, 3]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="1 keys for 2 payloads"):
        check_columns(Draft([b"a", b"b"], [b"k"], None))
    with pytest.raises(InvalidArgument, match="3 attributes for 2 payloads"):
        check_columns(Draft([b"a", b"b"], None, [None, None, None]))


def test_a_cut_takes_the_same_run_of_every_column() -> None:
    draft = Draft([b"a", b"b", b"c"], [b"1", None, b"3"], None)
    assert cut(draft, 1, 3) == Draft([b"b", b"c"], [None, b"3"], None)


# ---------------------------------------------------------------- acks


def test_acks_in_order_are_one_range() -> None:
    gatherer = RangeGatherer()
    for offset in range(10, 1000):
        gatherer.add(offset)
    assert len(gatherer) == 1
    assert gatherer.take() == [(10, 1000)]
    assert gatherer.take() == []


def test_the_ack_of_offset_zero_alone_is_a_range() -> None:
    gatherer = RangeGatherer()
    gatherer.add(0)
    assert gatherer.take() == [(0, 1)]


def test_a_cumulative_ack_swallows_what_came_before() -> None:
    gatherer = RangeGatherer()
    gatherer.add(7)
    gatherer.add(3)
    gatherer.add_range(0, 10)
    assert gatherer.take() == [(0, 10)]


_RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 8)).map(lambda pair: (pair[0], sum(pair)))
)


@given(_RANGES)
def test_gathered_ranges_are_the_union_sorted_and_apart(ranges: list[tuple[int, int]]) -> None:
    gatherer = RangeGatherer()
    for first, end in ranges:
        if end == first + 1:
            gatherer.add(first)
        else:
            gatherer.add_range(first, end)
    taken = gatherer.take()
    assert {x for first, end in taken for x in range(first, end)} == {
        x for first, end in ranges for x in range(first, end)
    }
    for (_, before_end), (after_first, _) in itertools.pairwise(taken):
        assert before_end < after_first


# ---------------------------------------------------------------- credit


def test_credit_goes_back_in_steps_of_half_a_window() -> None:
    credit = CreditWindow(100, 1000)
    assert credit.open() == Grant(100, 1000)
    assert credit.used(49, 0) is None
    assert credit.used(1, 5) == Grant(50, 5)
    assert credit.used(1, 499) is None
    assert credit.used(1, 1) == Grant(2, 500)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 300)), max_size=100))
def test_no_credit_is_lost_or_invented(uses: list[tuple[int, int]]) -> None:
    credit = CreditWindow(20, 200)
    granted_messages = granted_bytes = used_messages = used_bytes = 0
    for messages, size in uses:
        used_messages += messages
        used_bytes += size
        grant = credit.used(messages, size)
        if grant is not None:
            granted_messages += grant.messages
            granted_bytes += grant.bytes
        assert 0 <= used_messages - granted_messages < 10
        assert 0 <= used_bytes - granted_bytes < 100


def test_a_window_of_one_message_gives_it_back_at_once() -> None:
    credit = CreditWindow(1, 1)
    credit.open()
    assert credit.used(1, 10) == Grant(1, 10)


def test_a_new_connection_starts_with_the_whole_window() -> None:
    credit = CreditWindow(10, 10)
    credit.used(3, 0)
    assert credit.open() == Grant(10, 10)
    assert credit.used(4, 0) is None
