"""Keys that fell behind: messages of theirs were passed by, unremembered, and have to be read once more.

A key is *behind* from the first message on that could neither go nor be held. All its later messages are passed by
as well, so that they cannot overtake. Of a key that is behind only the first passed offset is known, or a bound
below it. Once it may go on, it *seeks*: a second read, beside the one at the log's end, goes from the
lowest such offset up and takes the messages of all keys that seek. A key that again finds no place stays
behind from there; those that seek when the second read has caught up with the first are behind no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from danubius.dispatch.core.keys import Key


class Stragglers:
    """See the module. `at`: where the second read goes on; it has a meaning only while somebody seeks."""

    __slots__ = ("_keys", "_seeking", "_waiting", "at")

    def __init__(self) -> None:
        self.at = 0
        self._keys: dict[Key, None] = {}
        self._waiting: dict[int, dict[Key, None]] = {}
        """Per owner, keys that could go on. May hold some that no longer could, but misses none."""
        self._seeking: dict[int, dict[Key, None]] = {}
        """Per owner, keys that seek; no empty ones."""

    def __len__(self) -> int:
        """How many keys are behind."""
        return len(self._keys)

    @property
    def is_seeking(self) -> bool:
        return bool(self._seeking)

    def seeks_for(self, consumer_id: int) -> bool:
        return consumer_id in self._seeking

    def fall_behind(self, key: Key, offset: int) -> None:
        """The first message of a key that is passed by, or with a key that seeks, the next one."""
        if key.is_seeking:
            self._stop(key)
        key.passed_from = offset
        self._keys[key] = None

    def offer(self, key: Key) -> None:
        """The key is behind and may go on."""
        assert key.owner is not None
        self._waiting.setdefault(key.owner.consumer_id, {})[key] = None

    def seek(self, consumer_id: int) -> None:
        """Go after all that a consumer could be given."""
        found = [
            one
            for one in self._waiting.pop(consumer_id, ())
            if one.passed_from >= 0 and one.may_go and not one.is_seeking
        ]
        if not found:
            return
        lowest = min(one.passed_from for one in found)
        self.at = min(self.at, lowest) if self._seeking else lowest
        seeking = self._seeking.setdefault(consumer_id, {})
        for one in found:
            one.is_seeking = True
            seeking[one] = None

    def catch_up(self) -> Collection[Key]:
        """The second read has reached the first: who seeks has all its messages. Returns these keys."""
        caught_up = [one for keys in self._seeking.values() for one in keys]
        self._seeking.clear()
        self._recover(caught_up)
        return caught_up

    def regroup(self) -> None:
        """Owners have changed: whoever may go on now will be offered anew."""
        for keys in self._seeking.values():
            for one in keys:
                one.is_seeking = False
                one.passed_from = max(one.passed_from, self.at)
        self._seeking.clear()
        self._waiting.clear()

    def forgive(self) -> Collection[Key]:
        """All that was passed by is acknowledged. Returns the keys, none of which is behind any more."""
        keys = list(self._keys)
        self._seeking.clear()
        self._waiting.clear()
        self._recover(keys)
        return keys

    def check(self, keys: Collection[Key]) -> None:
        """`keys`: all of the window."""
        assert {one for one in keys if one.passed_from >= 0} == self._keys.keys()
        seeking = {one for ones in self._seeking.values() for one in ones}
        assert seeking == {one for one in keys if one.is_seeking}
        assert all(self._seeking.values())
        for one in self._keys:
            if one.may_go and not one.held and not one.is_seeking:
                assert one.owner is not None
                assert one in self._waiting.get(one.owner.consumer_id, ()), "nobody goes after it"

    def _stop(self, key: Key) -> None:
        assert key.owner is not None
        consumer_id = key.owner.consumer_id
        seeking = self._seeking[consumer_id]
        del seeking[key]
        if not seeking:
            del self._seeking[consumer_id]
        key.is_seeking = False

    def _recover(self, keys: Collection[Key]) -> None:
        for one in keys:
            one.passed_from = -1
            one.passed = 0
            one.is_seeking = False
            del self._keys[one]
