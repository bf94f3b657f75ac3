"""One declaration an endpoint: routing, reading of requests and the OpenAPI description are all made from it.

A request is a struct. Its fields come from the path where the path names them (`topic` from the namespace and the topic
there), from the headers that are listed, and the rest from the query of a GET or DELETE and the JSON body of others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from danubius.edge.rest.bounds import BODY_BYTES_MAX
from danubius.errors import InvalidArgument
from danubius.model.limits import NAME_LENGTH_MAX
from danubius.model.unknown_fields import find_unknown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from danubius.edge.rest.desk import Desk

JSON: Final = "application/json"
_IN_PATH: Final = re.compile(r"\{(\w+)\}")
Name = Annotated[
    str,
    msgspec.Meta(
        extra_json_schema={
            "minLength": 1,
            "maxLength": NAME_LENGTH_MAX,
            "pattern": "^[A-Za-z0-9_-]+$",
        }
    ),
]
"""A name in a path. `check` refuses others, with the same words on every way in."""


class Binary(NamedTuple):
    """How a body of application/octet-stream becomes a request."""

    headers: type[msgspec.Struct]
    """Read from the headers `x-danubius-` and the field's name."""
    build: Callable[[str, Any, bytes], Any]
    """Given the topic, the headers and the body."""
    bytes_max: int


class Endpoint:
    """A method and a path, what is asked there, and what answers it."""

    def __init__(  # noqa: PLR0913  # one keyword for each part of a declaration
        self,
        method: str,
        path: str,
        request: type[msgspec.Struct],
        reply: type[msgspec.Struct] | None,
        run: Callable[[Desk, Any], Awaitable[Any]],
        *,
        status: int = 200,
        errors: tuple[int, ...] = (),
        headers: Mapping[str, str] | None = None,
        media: tuple[str, ...] = (),
        binary: Binary | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        """Declare it.

        `headers` names the header of each field that comes from one, `media` the media types that an answer may have
        beside JSON, `errors` its statuses beside those that every endpoint has.
        """
        self.method = method
        self.path = path
        self.request = request
        self.reply = reply
        self.run = run
        self.status = status
        self.errors = errors
        self.headers = dict(headers or {})
        self.body_bytes_max = body_bytes_max
        """Of JSON."""
        self.media = media
        self.binary = binary
        self.names: list[str] = _IN_PATH.findall(path)
        self.is_queried = method in ("GET", "DELETE")
        self._divide()

    def _divide(self) -> None:
        """Say for each field of the request where it comes from."""
        name = self.request.__name__
        fields = {field.name: field for field in msgspec.structs.fields(self.request)}
        rest = [fields[field] for field in fields if field not in {*self.names, *self.headers}]
        declared = [_declared(field) for field in rest]
        path = [(part, _path_type(fields.get(part))) for part in self.names]
        self.in_path = _struct(f"{name}Path", path)
        header = [_declared(fields[field]) for field in self.headers]
        self.in_header = _struct(f"{name}Headers", header)
        self.in_query = _struct(f"{name}Query", declared if self.is_queried else [])
        self.body: type[msgspec.Struct] | None = None
        self._decoder: msgspec.json.Decoder[msgspec.Struct] | None = None
        if declared and not self.is_queried:
            self.body = _struct(f"{name}Body", declared)
            self._decoder = msgspec.json.Decoder(self.body)
        self._is_body_needed = any(field.required for field in rest) and not self.is_queried

    @property
    def name(self) -> str:
        """The operation's name, unique among all."""
        return self.request.__name__[0].lower() + self.request.__name__[1:]

    @property
    def is_body_needed(self) -> bool:
        return self._is_body_needed

    def read(
        self,
        path: Mapping[str, str],
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> Any:
        """The request; InvalidArgument says what is wrong with it."""
        if self.binary is not None:
            self._refuse_binary_headers(headers)
        found = self._read_path(path)
        found |= msgspec.structs.asdict(_convert(query, self.in_query, "query"))
        if self.headers:
            given = {
                field: headers[header]
                for field, header in self.headers.items()
                if header in headers
            }
            found |= msgspec.structs.asdict(_convert(given, self.in_header, "headers"))
        if self._decoder is not None:
            found |= msgspec.structs.asdict(self._decode(body))
        elif body.strip() not in (b"", b"{}"):
            raise InvalidArgument(f"{self.method} {self.path} takes no body; send none")
        return self.request(**found)

    def read_binary(self, path: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Any:
        """The request whose body is application/octet-stream."""
        assert self.binary is not None
        kind = self.binary.headers
        given = {
            field: headers[header]
            for field in kind.__struct_fields__
            if (header := binary_header(field)) in headers
        }
        topic: str = self._read_path(path)["topic"]
        return self.binary.build(topic, _convert(given, kind, "headers"), body)

    def _refuse_binary_headers(self, headers: Mapping[str, str]) -> None:
        assert self.binary is not None
        for field in self.binary.headers.__struct_fields__:
            if binary_header(field) in headers:
                raise InvalidArgument(
                    f"the header {binary_header(field)} goes with application/octet-stream; say it in the JSON body"
                )

    def _read_path(self, path: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.structs.asdict(_convert(path, self.in_path, "path"))
        if "topic" in found:
            found["topic"] = f"/{found.pop('namespace')}/{found['topic']}"
        return found

    def _decode(self, body: bytes) -> msgspec.Struct:
        assert self._decoder is not None
        if not body and not self._is_body_needed:
            body = b"{}"
        try:
            return self._decoder.decode(body)
        except (ValueError, RecursionError) as problem:  # msgspec's errors and UnicodeDecodeError
            unknown = find_unknown(problem, self.body)
            said = f"{problem}; it must be a JSON object as /openapi.json says"
            said = said if unknown is None else unknown.sentence()
            raise InvalidArgument(f"the body is not understood: {said}") from problem


def binary_header(field: str) -> str:
    """The header that a field of a binary message comes from."""
    return f"x-danubius-{field.replace('_', '-')}"


def _path_type(field: Any) -> Any:
    return Name if field is None or field.type is str else field.type


def _declared(field: Any) -> Any:
    if field.required:
        return (field.name, field.type)
    if field.default is not msgspec.NODEFAULT:
        return (field.name, field.type, field.default)
    return (field.name, field.type, msgspec.field(default_factory=field.default_factory))


def _struct(name: str, fields: list[Any]) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        name, fields, frozen=True, forbid_unknown_fields=True, kw_only=True, module=__name__
    )


def _convert(given: Mapping[str, str], kind: type[msgspec.Struct], where: str) -> Any:
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except (ValueError, RecursionError) as problem:
        unknown = find_unknown(problem, kind)
        known = ", ".join(kind.__struct_fields__) or "nothing"
        said = f"{problem}; it takes {known}" if unknown is None else unknown.sentence()
        raise InvalidArgument(f"the {where} of the request is not understood: {said}") from problem
