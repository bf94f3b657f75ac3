"""Identities. A bare int or str never crosses a module: it is parsed once, here."""

from __future__ import annotations

import re
from typing import NewType

from danubius.errors import InvalidName
from danubius.model.limits import NAME_LENGTH_MAX

TopicName = NewType("TopicName", str)
"""`/namespace/topic`, validated by `parse_topic_name`."""
TopicId = NewType("TopicId", int)
"""A topic's number inside one broker's storage; never reused."""
Offset = NewType("Offset", int)
"""Position of a message in its topic: 0, 1, 2, … without gaps."""
Epoch = NewType("Epoch", int)
"""Generation of a ledger's or a producer's writer; the higher one wins."""
ProducerId = NewType("ProducerId", int)
SubscriptionId = NewType("SubscriptionId", int)
ConsumerId = NewType("ConsumerId", int)
"""Unique for the life of one broker process."""
LedgerId = NewType("LedgerId", int)

_WORD = re.compile(r"[A-Za-z0-9_-]+\Z")
_RULE = "use letters, digits, '_' and '-'"


def parse_topic_name(text: str) -> TopicName:
    """Check `/namespace/topic` and return it, or say what is wrong and what would be right."""
    parts = text.split("/")
    if len(parts) != 3 or parts[0]:
        raise InvalidName(
            f"topic name {text!r} is not of the form /namespace/topic, for example /default/orders"
        )
    _check_word("namespace", parts[1], text)
    _check_word("topic", parts[2], text)
    return TopicName(text)


def parse_name(kind: str, text: str) -> str:
    """Check a subscription, producer or consumer name."""
    _check_word(kind, text, text)
    return text


def namespace_of(topic: TopicName) -> str:
    return topic.split("/", 2)[1]


def _check_word(kind: str, word: str, whole: str) -> None:
    if not word:
        raise InvalidName(f"the {kind} in {whole!r} is empty: {_RULE}")
    if len(word) > NAME_LENGTH_MAX:
        raise InvalidName(
            f"the {kind} in {whole[:80]!r}… has {len(word)} characters, at most {NAME_LENGTH_MAX} are allowed"
        )
    if not _WORD.match(word):
        raise InvalidName(f"the {kind} {word!r} has characters that are not allowed: {_RULE}")
