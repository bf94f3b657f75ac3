"""Relations that a piece of Spark SQL names, found without Spark: those of its FROM clauses and joins.

This reads as much of Spark's grammar as decides whether a word is a relation: queries and common table expressions with
their scopes, FROM lists with everything that may stand between their commas, joins, parentheses around relations or
queries, `STREAM`, `TABLE`, `VALUES`, table functions. Expressions are passed over, apart from the queries in them. What
Spark would refuse is not refused here. tests/spark compares this with Spark's own parser on generated queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from danubius.spark.sql_lexer import Token, split

DEPTH_MAX: Final = 100
"""Parentheses within parentheses: more than anybody writes, and less than Python's stack."""

_SET_OPERATORS: Final = {"union", "intersect", "except", "minus"}
_BY: Final = {"group", "order", "sort", "cluster", "distribute", "partition"}
"""With BY they begin a list whose commas part no relations."""
_BEFORE_QUERIES: Final = {"all", "distinct", "by", "name"}
"""Behind a set operator: UNION ALL BY NAME."""
_QUERY_STARTS: Final = {"select", "with", "from", "values", "table", "map", "reduce"}
_AFTER_A_TABLE: Final = {
    "as", "on", "using", "where", "join", "left", "right", "full", "inner", "cross", "natural", "semi", "anti",
    "lateral", "group", "order", "having", "limit", "union", "except", "intersect", "minus", "tablesample", "pivot",
    "unpivot",
}  # fmt: skip
_END: Final = Token("end", "", 0, 0)


class Relation(NamedTuple):
    """A table or view that is read: the parts of its name, and where they begin and end."""

    parts: tuple[str, ...]
    start: int
    end: int


def relations(text: str) -> list[Relation]:
    """In the order of the text; names that the statement defines itself, by WITH, are left out."""
    scan = _Scan(split(text))
    while scan.has_more():  # an unmatched ) does not hide what follows
        scan.query(frozenset())
        scan.skip(")")
    return sorted(scan.found, key=lambda found: found.start)


@dataclass
class _Where:
    """What a word means at one depth of parentheses."""

    is_query: bool
    """FROM and JOIN bring relations; in the arguments of a function they do not."""
    is_list: bool = False
    """In a list of relations, where a comma brings the next one."""
    is_start: bool = False
    """A query may begin here."""


class _Scan:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._closing = _matching(tokens)
        self.found: list[Relation] = []

    def has_more(self) -> bool:
        return self._at < len(self._tokens)

    def skip(self, *texts: str) -> bool:
        """Past the next token if it is one of these."""
        if self._peek().text.lower() in texts and self._peek().kind in {"word", "sign"}:
            self._at += 1
            return True
        return False

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if 0 <= at < len(self._tokens) else _END

    # ------------------------------------------------------------ queries

    def query(self, scope: frozenset[str]) -> None:
        """Up to the ) that ends it, or the end of the text."""
        if self._peek().word == "with" and self._peek(1).name:
            scope = self._common_tables(scope)
        self._clauses(scope, _Where(is_query=True, is_start=True))

    def _common_tables(self, scope: frozenset[str]) -> frozenset[str]:
        self._at += 1
        is_recursive = self._peek(1).name != "" and self.skip("recursive")
        while True:
            name = self._peek().name.lower()
            self._at += 1
            if self._peek().text == "(" and self._is_followed_by_more():
                self._at = self._closing[self._at] + 1
            while self.has_more() and self._peek().text not in {"(", ")"}:
                self._at += 1
            self._group(scope | {name} if is_recursive else scope)
            scope = scope | {name}
            if not self.skip(","):
                return scope

    def _is_followed_by_more(self) -> bool:
        """Whether this ( opens names of columns, and not the query itself."""
        after = self._closing.get(self._at, len(self._tokens)) + 1
        following = self._tokens[after] if after < len(self._tokens) else _END
        return following.text == "(" or following.word in {"as", "max"}

    def _clauses(self, scope: frozenset[str], where: _Where) -> None:
        """What stands at one depth."""
        while self.has_more() and self._peek().text != ")":
            if self._peek().text == "(":
                self._group(scope)
                where.is_start = False
                continue
            word = "" if self._is_plain_name() else self._peek().word
            token = self._peek()
            self._at += 1
            if self._brings_relation(word, token, where):
                is_there = self._relation(scope)
                where.is_list = where.is_list or (word == "from" and is_there)
            elif word == "table" and where.is_start and self._peek().name:
                self._named(scope)
            elif word == "select" or word in _SET_OPERATORS:
                where.is_query, where.is_list = True, False
            elif self._ends_list(word, token):
                where.is_list = False
            where.is_start = word in _SET_OPERATORS or (where.is_start and word in _BEFORE_QUERIES)

    def _brings_relation(self, word: str, token: Token, where: _Where) -> bool:
        if token.text == ",":
            return where.is_list
        if not where.is_query:
            return False
        return word == "join" or (word == "from" and not self._is_comparison())

    def _ends_list(self, word: str, token: Token) -> bool:
        if word in _BY:
            return self._peek().word == "by"
        if word == "window":
            return self._peek().name != "" and self._peek(1).word == "as"
        if word == "lateral":
            return self._peek().word == "view"
        return token.text == "|>"

    def _is_plain_name(self) -> bool:
        """A word behind a dot or AS, or before a dot, is a name whatever it says."""
        before = self._peek(-1)
        if before.text == "." or before.word == "as":
            return True
        return self._peek(1).text == "." and self._peek(2).name != ""

    def _is_comparison(self) -> bool:
        """`a IS [NOT] DISTINCT FROM b`, behind the FROM."""
        return self._peek(-2).word == "distinct" and self._peek(-3).word in {"is", "not"}

    def _group(self, scope: frozenset[str]) -> None:
        """Past ( … ) in an expression or behind a name; a query in it is read."""
        self._inside(scope, _Where(is_query=False))

    def _inside(self, scope: frozenset[str], where: _Where) -> None:
        if not self.skip("("):
            return
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._at = self._closing.get(self._at - 1, len(self._tokens))
        elif self._starts_query():
            self.query(scope)
        else:
            if where.is_list:
                self._relation(scope)
            self._clauses(scope, where)
        self._depth -= 1
        self.skip(")")

    def _starts_query(self) -> bool:
        word = self._peek().word
        if word not in _QUERY_STARTS or self._peek(1).text in {".", ",", ")"}:
            return False
        return word in {"select", "from"} or self._peek(1).name != "" or self._peek(1).text == "("

    # ------------------------------------------------------------ relations

    def _relation(self, scope: frozenset[str]) -> bool:
        """One of a list or a join, without what may follow it; whether there is one."""
        if self._peek().word == "lateral" and "(" in {self._peek(1).text, self._peek(2).text}:
            self._at += 1
        token, following = self._peek(), self._peek(1)
        if token.text == "(":  # (SELECT …), (a JOIN b), ((a JOIN b) JOIN c)
            self._inside(scope, _Where(is_query=True, is_list=True))
        elif token.word == "values" and self._begins_row():
            self._at += 1
            self._inline_rows(scope)
        elif token.word == "stream" and following.text == "(":
            self._at += 2
            self._named(scope)
            self.skip(")")
        elif token.word == "identifier" and following.text == "(":
            self._identifier(scope)
        elif token.name and token.word != "from":
            is_keyword = token.word == "stream" and following.name
            self._at += bool(is_keyword and following.word not in _AFTER_A_TABLE)
            self._named(scope)
        else:
            return False  # FROM and JOIN may be names of columns, too
        return True

    def _begins_row(self) -> bool:
        """Whether VALUES is one word of a row; otherwise it is a name."""
        following = self._peek(1)
        is_call = following.name != "" and self._peek(2).text == "("
        is_number = following.text[:1].isdecimal() or following.text in {"-", "+"}
        is_word = following.word in {"null", "true", "false", "date", "timestamp", "interval"}
        return (
            following.text == "(" or following.kind == "string" or is_call or is_number or is_word
        )

    def _named(self, scope: frozenset[str]) -> None:
        first = self._peek()
        parts = [first.name]
        self._at += 1
        while self._peek().text == "." and self._peek(1).name:
            parts.append(self._peek(1).name)
            self._at += 2
        if self._peek().text == "(":
            self._function(scope)
        elif len(parts) > 1 or parts[0].lower() not in scope:
            self.found.append(Relation(tuple(parts), first.start, self._peek(-1).end))

    def _function(self, scope: frozenset[str]) -> None:
        """The arguments of a table function, of which some are tables: `TABLE(a)`, `TABLE a PARTITION BY x`."""
        end = self._closing.get(self._at, len(self._tokens))
        self._at += 1
        while self._at < end:
            if self._peek().word == "table" and not self._is_plain_name():
                self._at += 1
                self._relation(scope)
            elif self._peek().text == "(":
                self._group(scope)
            else:
                self._at += 1
        self.skip(")")

    def _identifier(self, scope: frozenset[str]) -> None:
        """`IDENTIFIER('a')`: a name that is written as a text; one that is computed is Spark's to find."""
        literal = self._peek(2)
        if literal.kind == "string" and self._peek(3).text == ")":
            parts = [part.name for part in split(literal.text[1:-1]) if part.text != "."]
            if parts and all(parts) and (len(parts) > 1 or parts[0].lower() not in scope):
                self.found.append(Relation(tuple(parts), literal.start, literal.end))
        self._at += 1
        self._group(scope)

    def _inline_rows(self, scope: frozenset[str]) -> None:
        """`VALUES (1, 'a'), (2, 'b')`: these commas part rows."""
        while self.has_more():
            if self._peek().text == "(":
                self._group(scope)
            else:
                while self.has_more() and not self._ends_row():
                    if self._peek().text == "(":
                        self._group(scope)
                    else:
                        self._at += 1
            if not self.skip(","):
                return

    def _ends_row(self) -> bool:
        return self._peek().text in {",", ")"} or self._peek().word in _AFTER_A_TABLE


def _matching(tokens: list[Token]) -> dict[int, int]:
    """Of every ( the place of its )."""
    open_at: list[int] = []
    closing: dict[int, int] = {}
    for at, token in enumerate(tokens):
        if token.text == "(":
            open_at.append(at)
        elif token.text == ")" and open_at:
            closing[open_at.pop()] = at
    return closing
