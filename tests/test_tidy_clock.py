"""No test depends on how fast the machine is: what waits by the clock has a name that says what for (patience.py)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_TESTS = Path(__file__).parent
_EXEMPT: Final = {"patience.py"}
_SLEEPS: Final = {"asyncio.sleep", "time.sleep", "sleep"}
_LIMITS: Final = {"timeout", "timeout_s", "within_s", "wait_s"}
"""Arguments that say how long to wait."""
_WAITS: Final = {"timeout", "wait", "result", "settimeout", "communicate", "wait_closed"}
"""Methods whose first argument does."""
_CLOCKS: Final = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
_WORDS: Final = {"elapsed", "took", "seconds", "waited"}


@cache
def _nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Those that the rules are about, with where they are."""
    return tuple(
        (f"{path.relative_to(_TESTS.parent)}:{node.lineno}", node)
        for path in sorted(_TESTS.rglob("*.py"))
        if path.name not in _EXEMPT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(
            node, ast.Call | ast.BinOp | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assert
        )
    )


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_number(node: ast.expr | None) -> bool:
    """Whether it is a bare one; zero is no time."""
    return isinstance(node, ast.Constant) and type(node.value) in {int, float} and bool(node.value)


def _waits(call: ast.Call) -> Iterator[ast.expr]:
    """What a call says about how long to wait."""
    called = _dotted(call.func)
    if called.startswith("pytest.mark."):
        return
    yield from (keyword.value for keyword in call.keywords if keyword.arg in _LIMITS)
    if called in _SLEEPS or (isinstance(call.func, ast.Attribute) and call.func.attr in _WAITS):
        yield from call.args[:1]


def test_whoever_waits_says_for_what_by_a_name() -> None:
    bare = [
        f"{place} {ast.unparse(node)[:80]}"
        for place, node in _nodes()
        if isinstance(node, ast.Call) and any(map(_is_number, _waits(node)))
    ]
    assert bare == []


def test_no_deadline_is_a_bare_number_from_now() -> None:
    bare = [
        f"{place} {ast.unparse(node)[:80]}"
        for place, node in _nodes()
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and _asks_a_clock(node.left)
        and _is_number(node.right)
    ]
    assert bare == []


def test_no_function_has_a_bare_time_limit_by_default() -> None:
    bare = [
        f"{place} {node.name}({argument.arg})"
        for place, node in _nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for argument, value in _defaults(node.args)
        if argument.arg in _LIMITS and _is_number(value)
    ]
    assert bare == []


def _defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    places = [*arguments.posonlyargs, *arguments.args]
    if arguments.defaults:
        yield from zip(places[-len(arguments.defaults) :], arguments.defaults, strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def _measures(node: ast.expr) -> bool:
    """Whether it is a time that passed."""
    return any(
        (isinstance(part, ast.Name) and part.id in _WORDS)
        or (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and _asks_a_clock(part))
        for part in ast.walk(node)
    )


def _asks_a_clock(node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Call) and _dotted(part.func).rpartition(".")[2] in _CLOCKS
        for part in ast.walk(node)
    )


def _is_upper_bound(compare: ast.Compare) -> bool:
    """Whether it says that a time that passed is less than something."""
    sides = [compare.left, *compare.comparators]
    return any(
        (isinstance(order, ast.Lt | ast.LtE) and _measures(left))
        or (isinstance(order, ast.Gt | ast.GtE) and _measures(right))
        for left, order, right in zip(sides, compare.ops, sides[1:], strict=False)
    )


def test_no_assertion_says_how_fast_the_machine_must_be() -> None:
    asserted = [
        f"{place} {ast.unparse(node.test)[:100]}"
        for place, node in _nodes()
        if isinstance(node, ast.Assert)
        and any(
            isinstance(part, ast.Compare) and _is_upper_bound(part) for part in ast.walk(node.test)
        )
    ]
    assert asserted == []


def test_no_test_has_a_time_limit_of_its_own() -> None:
    own = [
        place
        for place, node in _nodes()
        if isinstance(node, ast.Call)
        and _dotted(node.func) == "pytest.mark.timeout"
        and not place.startswith("tests/conftest.py")
    ]
    assert own == []


@pytest.mark.parametrize(
    ("source", "is_upper"),
    [
        ("took < 5", True),
        ("5 > seconds", True),
        ("time.monotonic() - began < 30.0", True),
        ("time.monotonic() < limit", False),
        ("waited >= 0.45", False),
        ("rate * seconds + 5 >= count", False),
    ],
)
def test_what_is_an_upper_bound(source: str, is_upper: bool) -> None:
    compare = ast.parse(source, mode="eval").body
    assert isinstance(compare, ast.Compare)
    assert _is_upper_bound(compare) is is_upper
