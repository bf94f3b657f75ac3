"""The code as data: bounds on size, names and words that no reviewer should have to look for."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent
_MODULE_LINES_MAX = 500
_FUNCTION_LINES_MAX = 60
_FILE_BYTES_MAX = 1 << 20
_BANNED_STEMS = {
    "utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "service", "handler",
}  # fmt: skip
# Written in pieces so that this file passes its own check.
_BANNED_TEXT = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:work|root|home|Users)" + r"/\w"),
    "the address of a package registry": re.compile(
        r"py" + r"pi\.org|python" + r"hosted|index" + r"-url|find" + r"-links", re.IGNORECASE
    ),
}
_LICENCE_FILES = {"LICENSE"}
_QUESTIONS = {"What", "Which", "How", "Where", "Who", "When", "Whether", "Why"}
# Some are one thing on both sides of a wire; the others wait for better names. None may be added.
_NAMES_OF_SEVERAL = {
    "AbortTransaction", "Addresses", "Answer", "Append", "Attachment", "Backoff", "Bound", "Call",
    "Check", "Chunk", "Claim", "Client", "Condemned", "ConnectionBounds", "Consumer",
    "CreateTopic", "DeadLetters", "DeleteTopic", "Deliver", "Demo", "DescribeTopic", "Done",
    "Draft", "Entry", "Extent", "Figures", "Found", "Frame", "Front", "Gate", "Given", "Group",
    "Held", "How", "Identity", "Job", "Key", "Line", "Link", "ListTopics", "Listener", "Message",
    "Opening", "Owner", "Pace", "Parcel", "Part", "Piece", "Place", "Ports", "Producer",
    "Publisher", "Query", "Rates", "Reader", "Refused", "Retry", "Run", "Scan", "Segment",
    "Session", "Settings", "Share", "Sink", "Span", "Stage", "StageOpened", "Staged", "State",
    "SubscriptionMoved", "SubscriptionSummary", "Tail", "Target", "Timer", "TopicChanged",
    "TopicDescribed", "TopicSummary", "TopicsListed", "Transaction", "Turn", "Turning", "Wanted",
    "Window", "Written",
}  # fmt: skip


@cache
def _tracked() -> tuple[Path, ...]:
    """Every file git tracks or would track; without git, every file outside hidden folders."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=_ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
        paths = [_ROOT / name for name in names]
    else:
        paths = [
            path
            for path in _ROOT.rglob("*")
            if not any(part.startswith(".") for part in path.relative_to(_ROOT).parts)
        ]
    return tuple(sorted(path for path in paths if path.is_file()))


def _python(*folders: str) -> list[Path]:
    roots = tuple(_ROOT / folder for folder in folders)
    return [
        path
        for path in _tracked()
        if path.suffix == ".py" and any(path.is_relative_to(root) for root in roots)
    ]


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def _names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(_ROOT)) for path in paths]


def test_modules_are_short() -> None:
    long = [
        f"{path.relative_to(_ROOT)}: {lines} lines"
        for path in _python("src", "tests", "benches", "examples")
        if (lines := len(path.read_text().splitlines())) > _MODULE_LINES_MAX
    ]
    assert long == []


def test_functions_are_short() -> None:
    long = [
        f"{path.relative_to(_ROOT)}:{node.lineno} {node.name}: {length} lines"
        for path in _python("src", "benches")
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > _FUNCTION_LINES_MAX
    ]
    assert long == []


def test_modules_say_what_they_are() -> None:
    silent = [
        path
        for path in _python("src", "benches", "examples")
        if not ast.get_docstring(_parsed(path))
    ]
    assert _names(silent) == []


def test_modules_begin_with_what_they_are() -> None:
    asking = [
        path
        for path in _python("src")
        if ((ast.get_docstring(_parsed(path)) or "?").split()[0].strip(",:")) in _QUESTIONS
    ]
    assert _names(asking) == []


def test_a_class_name_means_one_thing() -> None:
    counts = Counter(
        node.name
        for path in _python("src")
        for node in _parsed(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    several = {name for name, count in counts.items() if count > 1}
    assert several - _NAMES_OF_SEVERAL == set()
    assert _NAMES_OF_SEVERAL - several == set(), "these are done: take them out of the list"


def test_names_say_something() -> None:
    banned = [path for path in _python("src", "tests", "benches") if path.stem in _BANNED_STEMS]
    folders = [
        path for path in _python("src") if _BANNED_STEMS & set(path.relative_to(_ROOT).parts)
    ]
    assert _names(banned + folders) == []


def test_commands_print_through_one_door() -> None:
    # Whatever others wrote would reach a terminal raw, which obeys it: `cli/output.py` writes control characters out.
    raw = re.compile(
        r"click\.(?:echo|secho|style)\(|sys\.std(?:out|err)\.write\(|(?<![\w.])print\("
    )
    allowed = {
        "output.py",
        "side.py",
    }  # a worker of the benchmark talks to its parent in lines of its own
    found = [
        path
        for path in _python("src/danubius/cli")
        if path.name not in allowed
        and path != _ROOT / "src/danubius/cli/__init__.py"  # says that click is not there
        and raw.search(path.read_text())
    ]
    assert _names(found) == []


_BEHIND_THE_DOOR = ("danubius.shard", "danubius.catalog", "danubius.broker")
_HOSTS = {"shard", "_shard", "node", "_node"}
"""Attributes that lead to what the broker hosts."""
_HOSTS_OF_A_SESSION = {"producers", "consumers"}


def _reaches(source: str) -> list[str]:
    """What a module of an edge touches of the broker besides its sessions and its administration."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                modules = [module, *(f"{module}.{name.name}" for name in names)]
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.Attribute(attr=attr, value=ast.Attribute() | ast.Name()) if attr in _HOSTS or (
                attr in _HOSTS_OF_A_SESSION and _last_name(node.value) == "session"
            ):
                found.append(f"{node.lineno} .{attr}")
                continue
            case _:
                continue
        found += [
            f"{node.lineno} {module}"
            for module in modules
            if any(module == one or module.startswith(f"{one}.") for one in _BEHIND_THE_DOOR)
        ]
    return found


def _last_name(node: ast.expr) -> str:
    """The last part of a dotted name, without the underscore of a private one."""
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id.lstrip("_") if isinstance(node, ast.Name) else ""


def test_edges_go_through_the_door() -> None:
    # The import contract does not see what is imported for types only, nor a chain of attributes.
    found = [
        f"{path.relative_to(_ROOT)}:{reach}"
        for path in _python("src/danubius/edge")
        for reach in _reaches(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "if TYPE_CHECKING:\n    from danubius.shard.hosting.topic import Topic",
        "from danubius import broker",
        "import danubius.catalog.core.names",
        "self._edge.shard.journal.hold()",
        "self._node.about",
        "self._line.session.producers.get(1)",
        "session.consumers",
    ],
)
def test_a_way_past_the_door_is_seen(source: str) -> None:
    assert _reaches(source)


def test_examples_fit_on_a_screen() -> None:
    # Those in folders of their own are plug-ins, whole ones.
    short = [path for path in _python("examples") if path.parent == _ROOT / "examples"]
    long = [path for path in short if len(path.read_text().splitlines()) > 40]
    assert _names(long) == []


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in _python("tests") if path.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_only_one_file_asks_whether_this_is_a_proof() -> None:
    asking = [path for path in _python("tests") if "DANUBIUS_" + "PROVE" in path.read_text()]
    assert _names(asking) == ["tests/proving.py"]


def test_a_part_that_fails_stops_no_other_and_is_named_at_the_end() -> None:
    failing = "echo 'FAILED tests/a.py::test_b - assert 1 == 2'; echo '1 failed'; exit 1"
    parts = ["one", failing, "two", "echo '7 passed'"]
    done = subprocess.run(
        [_ROOT / ".ci" / "parts", *parts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    *_, one, reason, two = done.stdout.splitlines()
    assert re.fullmatch(r"FAIL +one .* 1 failed", one)
    assert reason.strip() == "FAILED tests/a.py::test_b - assert 1 == 2"
    assert re.fullmatch(r"ok +two .* 7 passed", two)


@pytest.mark.parametrize("what", list(_BANNED_TEXT))
def test_no_file_contains(what: str) -> None:
    pattern = _BANNED_TEXT[what]
    found: list[str] = []
    for path in _tracked():
        if path.name in _LICENCE_FILES:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(_ROOT)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    assert found == []


def test_no_large_file_is_tracked() -> None:
    assert _names([path for path in _tracked() if path.stat().st_size > _FILE_BYTES_MAX]) == []


def test_readme_fits() -> None:
    assert len((_ROOT / "README.md").read_text().splitlines()) <= 120
