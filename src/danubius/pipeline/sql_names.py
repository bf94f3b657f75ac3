"""Which views a piece of Spark SQL reads, found without Spark: what follows FROM and JOIN.

A name with a dot belongs to a catalog and is Spark's to find; a name in `WITH … AS` is the statement's own. What this
cannot see (a table named by an expression) is not reported: Spark reports it when the view is made.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_HIDDEN: Final = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_TOKEN: Final = re.compile(r"`[^`]*`|[A-Za-z_][\w]*|[(),.]")
_CTE: Final = re.compile(
    r"(?:\bWITH(?:\s+RECURSIVE)?|,)\s*(`[^`]*`|\w+)\s*(?:\([^()]*\)\s*)?\bAS\s*\(", re.IGNORECASE
)
_FUNCTIONS_WITH_FROM: Final = {"extract", "trim", "substring", "substr", "overlay", "position"}
_SKIPPED: Final = {"lateral", "stream", "table"}


class Name(NamedTuple):
    """A view that is read, and how many lines into the statement."""

    name: str
    line: int


def names_read(sql: str) -> list[Name]:
    plain = _HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), sql)
    own = {match[1].strip("`").lower() for match in _CTE.finditer(plain)}
    tokens = list(_TOKEN.finditer(plain))
    found: list[Name] = []
    open_calls: list[str] = []
    for index, token in enumerate(tokens):
        word = token[0].lower()
        if word == "(":
            open_calls.append(tokens[index - 1][0].lower() if index else "")
        elif word == ")":
            if open_calls:
                open_calls.pop()
        elif word in {"from", "join"} and not _is_of_a_function(word, index, tokens, open_calls):
            found += _list_of_names(plain, tokens, index + 1, is_list=word == "from")
    return [each for each in found if each.name.lower() not in own]


def _is_of_a_function(
    word: str, index: int, tokens: list[re.Match[str]], open_calls: list[str]
) -> bool:
    if (
        word == "from"
        and index
        and tokens[index - 1][0].lower() == "distinct"
        and _is_comparison(tokens, index)
    ):
        return True
    return word == "from" and bool(open_calls) and open_calls[-1] in _FUNCTIONS_WITH_FROM


def _is_comparison(tokens: list[re.Match[str]], index: int) -> bool:
    """`a IS [NOT] DISTINCT FROM b`."""
    return index >= 2 and tokens[index - 2][0].lower() in {"is", "not"}


def _list_of_names(
    plain: str, tokens: list[re.Match[str]], at: int, *, is_list: bool
) -> list[Name]:
    found: list[Name] = []
    while at < len(tokens):
        while at < len(tokens) and tokens[at][0].lower() in _SKIPPED:
            at += 1
        if at >= len(tokens) or tokens[at][0] in "(),.":
            break
        token = tokens[at]
        following = tokens[at + 1][0] if at + 1 < len(tokens) else ""
        if following not in {".", "("}:
            found.append(Name(token[0].strip("`"), plain.count("\n", 0, token.start())))
        at = _after_alias(tokens, at + 1)
        if not is_list or at >= len(tokens) or tokens[at][0] != ",":
            break
        at += 1
    return found


def _after_alias(tokens: list[re.Match[str]], at: int) -> int:
    """Past `AS x` or `x`, if a comma follows."""
    for skip in (0, 1, 2):
        if at + skip < len(tokens) and tokens[at + skip][0] == ",":
            return at + skip
    return len(tokens)
