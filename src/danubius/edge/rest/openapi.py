"""The OpenAPI description, made from the same declarations that requests are read with."""

from __future__ import annotations

import http
import inspect
import typing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danubius.edge.rest.bounds import WAIT_MS_MAX
from danubius.edge.rest.endpoint import JSON, binary_header
from danubius.edge.rest.messages import SeenMessage
from danubius.edge.rest.problems import PROBLEM_TYPE, Problem
from danubius.edge.rest.tail import EVENT_STREAM
from danubius.model.field_docs import field_docs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from danubius.edge.rest.endpoint import Endpoint

_REF: Final = "#/components/schemas/{name}"
_PATH_DOCS: Final = {
    "namespace": "The namespace.",
    "topic": "The topic, without its namespace; a partition of it as `orders-part-0`.",
    "subscription": "The subscription.",
    "producer": "The producer's name.",
    "consumer": "The consumer's name.",
    "transaction": "The transaction's number.",
    "session": "The session, as it was given when the consumer was opened.",
    "ledger_id": "The number of one of the topic's ledgers.",
}
_ERRORS: Final = {
    400: "The request is not understood, or asks for what cannot be; `detail` says what would be right.",
    403: "A browser sent it for a page of another site.",
    404: "What the path names is not there.",
    408: "The body did not arrive in time.",
    409: "It contradicts what is there: it exists already, is in use, or was ended.",
    413: "The body or a message is too large.",
    415: "The body is of a media type that is not taken here.",
    422: "What is stored there is damaged; `detail` says where to go on.",
    429: "Too much at once: wait, then try again.",
    503: "The broker's storage failed, or it is stopping: nothing was done; try again.",
    504: "There was no answer in time; whether it was done is unknown.",
}


def statuses_of(endpoint: Endpoint) -> list[int]:
    """The statuses of all answers that are no success."""
    found = {400, 429, 503, 504, *endpoint.errors}
    if endpoint.names:
        found |= {404, 409}
    if endpoint.method in ("POST", "PUT", "PATCH"):
        found |= {404, 408, 409, 413, 415}
    if endpoint.method != "GET":
        found.add(403)
    return sorted(found)


def describe(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """The whole document."""
    schemas = _Schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operations = paths.setdefault(endpoint.path, {})
        operations[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Danubius",
            "version": version,
            "description": (
                "Administration, publishing and consuming over HTTP. Errors are problems (RFC 9457) with the error's "
                f"stable code and name. Requests wait {WAIT_MS_MAX // 1000} s at the most."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(map(tag_of, endpoints))],
        "paths": paths,
        "components": {"schemas": schemas.components},
    }


def tag_of(endpoint: Endpoint) -> str:
    """What it is about."""
    parts = endpoint.path.split("/")[3:]
    if "subscriptions" in parts:
        return "subscriptions"
    return "messages" if parts[-1] in ("messages", "tail") else parts[0]


def title_of(endpoint: Endpoint) -> str:
    """What it does, in a line."""
    return inspect.cleandoc(endpoint.request.__doc__ or "").splitlines()[0]


class _Schemas:
    """The schemas of all types that the endpoints name."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        documented: dict[str, type[msgspec.Struct]] = {}
        types: list[Any] = [Problem, SeenMessage]
        for endpoint in endpoints:
            if endpoint.reply is not None:
                types.append(endpoint.reply)
            if endpoint.body is not None:
                types.append(endpoint.body)
                documented[endpoint.body.__name__] = endpoint.request
            for struct in _parameter_structs(endpoint):
                types += [field.type for field in msgspec.structs.fields(struct)]
        self._types = types
        found, components = msgspec.json.schema_components(types, ref_template=_REF)
        self._found = found
        self.components: dict[str, Any] = components
        for struct in _structs_of(types):
            documented.setdefault(struct.__name__, struct)
        for name, schema in components.items():
            _document(schema, documented.get(name))

    def of(self, kind: Any) -> dict[str, Any]:
        return self._found[self._types.index(kind)]


def _parameter_structs(endpoint: Endpoint) -> list[type[msgspec.Struct]]:
    structs = [endpoint.in_path, endpoint.in_query, endpoint.in_header]
    return [*structs, endpoint.binary.headers] if endpoint.binary is not None else structs


def _structs_of(types: Iterable[Any]) -> list[type[msgspec.Struct]]:
    """All structs that are reached from these types."""
    found: dict[type[msgspec.Struct], None] = {}
    pending: list[Any] = list(types)
    while pending:
        kind: Any = pending.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind in found:
                continue
            found[kind] = None
            pending += [field.type for field in msgspec.structs.fields(kind)]
        else:
            pending += typing.get_args(kind)
    return list(found)


def _document(schema: dict[str, Any], struct: type[msgspec.Struct] | None) -> None:
    if "description" in schema:
        schema["description"] = inspect.cleandoc(schema["description"])
    docs = field_docs(struct) if struct is not None else {}
    for name, text in docs.items():
        field = schema.get("properties", {}).get(name)
        if field is not None:
            field.setdefault("description", text)


def _operation(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": title_of(endpoint),
        "tags": [tag_of(endpoint)],
        "parameters": _parameters(endpoint, schemas),
    }
    if endpoint.body is not None:
        content: dict[str, Any] = {JSON: {"schema": schemas.of(endpoint.body)}}
        if endpoint.binary is not None:
            content["application/octet-stream"] = {"schema": {}}
        operation["requestBody"] = {"required": endpoint.is_body_needed, "content": content}
    operation["responses"] = _responses(endpoint, schemas)
    return operation


def _parameters(endpoint: Endpoint, schemas: _Schemas) -> list[dict[str, Any]]:
    docs = field_docs(endpoint.request)
    found = [
        _parameter(field, "path", field.name, _PATH_DOCS[field.name], schemas)
        for field in msgspec.structs.fields(endpoint.in_path)
    ]
    found += [
        _parameter(field, "query", field.name, docs.get(field.name, ""), schemas)
        for field in msgspec.structs.fields(endpoint.in_query)
    ]
    found += [
        _parameter(field, "header", endpoint.headers[field.name], docs.get(field.name, ""), schemas)
        for field in msgspec.structs.fields(endpoint.in_header)
        if field.name != "accept"  # said by the media types of the answer
    ]
    if endpoint.binary is not None:
        docs = field_docs(endpoint.binary.headers)
        found += [
            _parameter(
                field,
                "header",
                binary_header(field.name),
                f"With application/octet-stream only. {docs.get(field.name, '')}",
                schemas,
            )
            for field in msgspec.structs.fields(endpoint.binary.headers)
        ]
    return found


def _parameter(field: Any, where: str, name: str, text: str, schemas: _Schemas) -> dict[str, Any]:
    schema = dict(schemas.of(field.type))
    if not field.required and field.default is not msgspec.NODEFAULT:
        schema["default"] = msgspec.to_builtins(field.default)
    parameter = {
        "name": name,
        "in": where,
        "required": where == "path" or field.required,
        "schema": schema,
    }
    return parameter | ({"description": text} if text else {})


def _event(schemas: _Schemas) -> dict[str, Any]:
    """Of each event of a stream."""
    data = {"anyOf": [schemas.of(SeenMessage), schemas.of(Problem)]}
    return {
        "type": "object",
        "description": "One event of the stream; comments keep it alive.",
        "properties": {
            "id": {"type": "string", "description": "The offset: give it as Last-Event-ID."},
            "event": {"enum": ["message", "error"], "description": "After an error it ends."},
            "data": {
                "type": "string",
                "contentMediaType": JSON,
                "contentSchema": data,
                "description": "A message, or a problem.",
            },
        },
        "required": ["event", "data"],
    }


def _responses(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    success: dict[str, Any] = {"description": http.HTTPStatus(endpoint.status).phrase}
    content: dict[str, Any] = {}
    if endpoint.reply is not None and endpoint.status != http.HTTPStatus.NO_CONTENT:
        content[JSON] = {"schema": schemas.of(endpoint.reply)}
    for media in endpoint.media:
        content[media] = {"schema": _event(schemas)} if media == EVENT_STREAM else {}
    if content:
        success["content"] = content
    if "application/vnd.danubius.batches" in endpoint.media:
        success["headers"] = {
            f"x-danubius-{name}": {
                "required": False,
                "schema": {"type": "integer"},
                "description": f"With record batches: {text}.",
            }
            for name, text in (
                ("first", "pass over records below this offset"),
                ("next", "give it as start to go on"),
                ("start-offset", "of the oldest message that is still there"),
                ("end-offset", "behind the newest"),
            )
        }
    problem = {PROBLEM_TYPE: {"schema": schemas.of(Problem)}}
    found: dict[str, Any] = {str(endpoint.status): success}
    for status in statuses_of(endpoint):
        found[str(status)] = {"description": _ERRORS[status], "content": problem}
        if status in (429, 503):
            found[str(status)]["headers"] = {
                "retry-after": {
                    "required": True,
                    "schema": {"type": "integer", "minimum": 1},
                    "description": "Seconds to wait.",
                }
            }
    return found
