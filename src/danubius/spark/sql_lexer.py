"""The one SQL lexer of the project: a text as Spark's own lexer splits it.

Strings with escapes, quoted names, nested comments. Everything that looks into SQL (queries over topics, the steps of a
pipeline, the DDL of a schema) stands on these tokens, so a name in a string or a comment is none for anybody.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
    |(?P<comment>/\*)
    |(?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<unfinished>['"`].*)
    |(?P<word>\w+)
    |(?P<sign><=>|>=|<=|<>|!=|==|\|>|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_PART: Final = re.compile(r"/\*|\*/")


class Token(NamedTuple):
    """A piece of the text that means something: a string, a quoted name, a word, a sign, or a quote without its end."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """In lower case, if it is a word; else nothing."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """As a name: without its quotes; nothing if it cannot be one."""
        if self.kind == "quoted":
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind == "word" else ""


def split(text: str) -> list[Token]:
    """The tokens, without white space and comments."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "the last alternative takes any character"
        kind = match.lastgroup or ""
        if kind == "comment":
            at = _after_comment(text, match.end())
            continue
        if kind != "space":
            tokens.append(Token(kind, match[0], at, match.end()))
        at = match.end()
    return tokens


def place(text: str, at: int) -> str:
    """`line 1, position 14`: as Spark counts, lines from 1 and characters from 0."""
    line = text.count("\n", 0, at) + 1
    return f"line {line}, position {at - (text.rfind(chr(10), 0, at) + 1)}"


def _after_comment(text: str, at: int) -> int:
    depth = 1
    while depth:
        part = _COMMENT_PART.search(text, at)
        if part is None:
            return len(text)
        depth += 1 if part[0] == "/*" else -1
        at = part.end()
    return at
