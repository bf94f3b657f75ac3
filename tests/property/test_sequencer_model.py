"""The sequencer against the simplest model: a list of stored sequences a producer, the broker's own between them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from danubius.errors import DanubiusError
from danubius.model.ids import Epoch, Offset, ProducerId
from danubius.publish.core.sequencer import Repeated, Sequencer

NAMES = ("a", "b", "c")
BROKER = ""

steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(NAMES), st.integers(1, 4)),
        st.tuples(st.just("assign"), st.just(BROKER), st.integers(1, 4)),
        st.tuples(st.just("repeat"), st.sampled_from(NAMES), st.integers(0, 20)),
        st.tuples(st.just("commit"), st.just(""), st.integers(1, 3)),
        st.tuples(st.just("fail"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_each_sequence_is_stored_once_and_answers_never_change(
    script: list[tuple[str, str, int]],
) -> None:
    sequencer = Sequencer()
    producers = {
        n: sequencer.open(ProducerId(i), n, Epoch(1), resumed=False) for i, n in enumerate(NAMES)
    }
    pending: list[tuple[str, int, int, int]] = []
    stored: dict[str, list[tuple[int, int, int]]] = {name: [] for name in NAMES}
    log: list[tuple[str, int]] = []
    for verb, name, number in script:
        if verb == "send":
            sequence = producers[name].admitted_next
            decision = sequencer.admit(producers[name], sequence, number)
            assert not isinstance(decision, Repeated)
            pending.append((name, sequence, number, decision))
        elif verb == "assign":
            pending.append((BROKER, 0, number, sequencer.assign(number)))
        elif verb == "repeat" and stored[name]:
            sequence, count, offset = stored[name][number % len(stored[name])]
            assert sequencer.admit(producers[name], sequence, count) == Repeated(
                Offset(offset), None
            )
        elif verb == "commit":
            for _ in range(min(number, len(pending))):
                sender, sequence, count, offset = pending.pop(0)
                sequencer.commit()
                assert offset == len(log)
                log += [(sender, sequence + i) for i in range(count)]
                if sender != BROKER:
                    stored[sender].append((sequence, count, offset))
        elif verb == "fail":
            sequencer.roll_back()
            pending.clear()
        sequencer.check()
    assert sequencer.committed_offset == len(log)
    for name in NAMES:
        assert [s for n, s in log if n == name] == list(range(producers[name].committed_next))


@given(st.integers(0, 50), st.integers(1, 5))
def test_what_was_never_stored_is_never_called_repeated(sequence: int, count: int) -> None:
    sequencer = Sequencer()
    producer = sequencer.open(ProducerId(1), "p", Epoch(1), resumed=False)
    sequencer.admit(producer, 0, 10)
    sequencer.commit()
    try:
        decision = sequencer.admit(producer, sequence, count)
    except DanubiusError:
        return
    if isinstance(decision, Repeated):
        assert sequence + count <= 10
        assert decision.offset == sequence
    else:
        assert sequence == 10
