"""From an address to an object store: `s3://bucket/prefix` and a few options.

What is wrong is named together with what would be right, before anything is asked of the store. Secrets are in options
or the environment; an address is for everybody's eyes, so one with a password is shown without it.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from danubius.errors import DanubiusError, InvalidArgument, TierMisconfigured
from danubius.redaction import redact_address
from danubius.tier.file_objects import FileObjects
from danubius.tier.listed_objects import ListedObjects
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.objects import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from danubius.tier.objects import ObjectLimits, ObjectStore

_ALSO_CALLED: Final = {
    "gs": "gcs",
    "gcp": "gcs",
    "s3a": "s3",
    "s3n": "s3",
    "aws": "s3",
    "minio": "s3",
    "az": "azblob",
    "azure": "azblob",
    "wasb": "azblob",
    "wasbs": "azblob",
    "abfs": "azdls",
    "abfss": "azdls",
    "file": "fs",
    "rediss": "redis",
    "postgres": "postgresql",
}
_FOR_AUTHORITY: Final = ("bucket", "container", "filesystem", "endpoint")
"""The option that the part behind `://` gives; the first of these that the scheme has."""
_EXAMPLES: Final = (
    "s3://bucket/prefix, gcs://bucket/prefix, azblob://container/prefix, redis://host:6379/0, "
    "fs:///path or memory://name"
)


class _Target(NamedTuple):
    scheme: str
    options: dict[str, str]
    shown: str


def open_objects(
    url: str,
    options: Mapping[str, str] | None = None,
    limits: ObjectLimits | None = None,
    *,
    is_read_only: bool = False,
) -> ObjectStore:
    """The object store at an address; raises TierMisconfigured. `is_read_only`: nothing is made where there is none.

    Nothing is asked of a server yet: whether it is there, and takes the credentials, shows with the first call.
    """
    options = dict(options or {})
    split = _split(url)
    if split.scheme == "fs":
        return _open_files(split, options, is_read_only=is_read_only)
    if split.scheme == "memory":
        _refuse_options("memory", options)
        return MemoryObjects(split.netloc + split.path or "default")
    # Who keeps objects in files needs no OpenDAL.
    try:
        from danubius.tier.opendal_objects import OpendalObjects, known_schemes
    except ImportError as error:
        raise TierMisconfigured(
            f"{split.scheme}:// needs OpenDAL ({error}): pip install 'danubius[tier]'"
        ) from error
    target = _target(split, options, known_schemes())
    objects = OpendalObjects(target.scheme, target.options, target.shown, limits)
    return objects if objects.can_list else ListedObjects(objects)


def _split(url: str) -> SplitResult:
    scheme = url.partition("://")[0] if "://" in url else ""
    if not scheme:
        raise TierMisconfigured(f"an object store has an address such as {_EXAMPLES}")
    try:
        split = urlsplit(url)
        _ = split.port
    except ValueError:
        # What is malformed may be a password: it is not repeated.
        raise TierMisconfigured(
            f"the address {redact_address(url)} of the object store is malformed: it is such as {_EXAMPLES}; in a "
            "password, write characters such as / and @ as %2F and %40"
        ) from None
    if split.query or split.fragment:
        raise TierMisconfigured(
            f"the address {_shown(split)} has a '?' or '#': options are given apart, as key=value"
        )
    if split.password is not None and split.scheme != "redis":
        raise TierMisconfigured(
            f"the address {_shown(split)} has a password in it: give it as an option or by the environment"
        )
    return split


def _open_files(
    split: SplitResult, options: Mapping[str, str], *, is_read_only: bool
) -> ObjectStore:
    _refuse_options("fs", options)
    if split.netloc or not split.path.strip("/"):
        raise TierMisconfigured(
            f"fs:// needs a whole path, as in fs:///var/lib/danubius-cold, not {_shown(split)}"
        )
    try:
        return FileObjects(Path(unquote(split.path)), is_read_only=is_read_only)
    except DanubiusError as error:
        raise TierMisconfigured(f"the object store {_shown(split)}: {error.message}") from error


def _refuse_options(scheme: str, options: Mapping[str, str]) -> None:
    if options:
        raise TierMisconfigured(f"{scheme}:// has no options, so not '{min(options)}' either")


def _target(
    split: SplitResult, options: dict[str, str], schemes: Mapping[str, frozenset[str]]
) -> _Target:
    scheme = split.scheme
    known = schemes.get(scheme)
    if known is None:
        raise TierMisconfigured(
            f"there is no object store '{scheme}://'{_hint(scheme, [*schemes, *_ALSO_CALLED])}: "
            f"an address is such as {_EXAMPLES}"
        )
    for name in options:
        if name not in known:
            hint = _hint(name, known) or f"; it has {', '.join(sorted(known))}"
            raise TierMisconfigured(f"{scheme}:// has no option '{name}'{hint}")
    given = _redis(split) if scheme == "redis" else _authority(split, known)
    twice = sorted(given.keys() & options.keys())
    if twice:
        raise TierMisconfigured(
            f"the address {_shown(split)} says the {twice[0]} already: leave the option out"
        )
    root = given.pop("root", split.path.strip("/"))
    if root:
        _check_root(root)
        if "root" in options:
            raise TierMisconfigured(
                f"the address {_shown(split)} says the root already: leave the option out"
            )
        given["root"] = "/" + root
    return _Target(scheme, {**given, **options}, _shown(split))


def _authority(split: SplitResult, known: frozenset[str]) -> dict[str, str]:
    """What the part behind `://` stands for."""
    if not split.netloc:
        return {}
    option = next((name for name in _FOR_AUTHORITY if name in known), None)
    if option is None:
        raise TierMisconfigured(
            f"{split.scheme}:// has no host or bucket: write {split.scheme}:///prefix and say where by options, "
            f"which are {', '.join(sorted(known))}"
        )
    return {option: split.netloc}


def _redis(split: SplitResult) -> dict[str, str]:
    """redis://[user[:password]@]host[:port][/database[/prefix]]."""
    given: dict[str, str] = {"db": "0"}
    if split.hostname:
        given["endpoint"] = f"tcp://{split.hostname}:{split.port or 6379}"
    if split.username:
        given["username"] = unquote(split.username)
    if split.password:
        given["password"] = unquote(split.password)
    database, _, root = split.path.strip("/").partition("/")
    if database:
        if not database.isdecimal():
            raise TierMisconfigured(
                f"{_shown(split)}: a database of Redis is a number, as in redis://host:6379/0/prefix"
            )
        given["db"] = database
    given["root"] = root
    return given


def _check_root(root: str) -> None:
    try:
        check_name(root)
    except InvalidArgument as error:
        raise TierMisconfigured(f"the prefix of an object store: {error.message}") from None


def _shown(split: SplitResult) -> str:
    return redact_address(f"{split.scheme}://{split.netloc}{split.path}").rstrip("/")


def _hint(word: str, known: Iterable[str]) -> str:
    meant = _ALSO_CALLED.get(word)
    if meant is None:
        near = difflib.get_close_matches(word, sorted(known), 1)
        meant = _ALSO_CALLED.get(near[0], near[0]) if near else None
    return f", did you mean '{meant}'?" if meant else ""
