"""danube_schema.SchemaRegistry of a broker that has no registry: empty, and every call of it says the same.

What is listed is nothing; what is asked for by name or number is NOT_FOUND; a topic has no schema, and nothing is
validated; what would have to be kept is FAILED_PRECONDITION. So a client that finds no subject in the list finds none
by any other call either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Never

from danubius.edge.grpc.messages import danube_schema
from danubius.edge.grpc.servicer import Servicer
from danubius.edge.grpc.status import Code, Refused
from danubius.errors import InvalidArgument, TopicNotFound
from danubius.model.ids import parse_topic_name

if TYPE_CHECKING:
    from danubius.edge.grpc.servicer import QuickCall
    from danubius.session.door import Door

NO_REGISTRY: Final = "this broker has no schema registry; send without a schema"
SHOWN: Final = 100
"""Characters of a name that is told back."""
_NO_POLICY: Final = "none"
_POLICIES: Final = (_NO_POLICY, "warn", "enforce")
_MODES: Final = ("none", "backward", "forward", "full")


def refuse_subject(subject: str) -> None:
    """A topic or a producer with a schema is refused; an empty subject is none."""
    if subject:
        raise Refused(Code.FAILED_PRECONDITION, _not_found(subject))


def _not_found(subject: str) -> str:
    return f"schema subject {subject[:SHOWN]!r} not found: {NO_REGISTRY}"


class SchemaEdge:
    """The registry's calls, answered."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def servicer(self) -> Servicer:
        subjects = (
            "GetLatestSchema",
            "ListVersions",
            "CheckCompatibility",
            "DeleteSchemaVersion",
        )
        quick = dict.fromkeys(subjects, self._miss_subject)
        return Servicer(
            danube_schema.service("SchemaRegistry"),
            quick=quick
            | {
                "ListSubjects": self._list_subjects,
                "GetSchema": self._miss_schema,
                "SetCompatibilityMode": self._set_mode,
                "RegisterSchema": self._register,
                "ConfigureTopicSchema": self._configure,
                "UpdateTopicValidationPolicy": self._update_policy,
                "GetTopicSchemaConfig": self._get_config,
            },
        )

    def _list_subjects(self, request: Any, call: QuickCall) -> Any:
        del request, call
        return danube_schema.ListSubjectsResponse()

    def _miss_subject(self, request: Any, call: QuickCall) -> Never:
        del call
        if not request.subject:
            raise InvalidArgument("subject is empty")
        raise Refused(Code.NOT_FOUND, _not_found(request.subject))

    def _miss_schema(self, request: Any, call: QuickCall) -> Never:
        del call
        raise Refused(Code.NOT_FOUND, f"schema {request.schema_id} not found: {NO_REGISTRY}")

    def _set_mode(self, request: Any, call: QuickCall) -> Never:
        _check_one_of("compatibility_mode", request.compatibility_mode, _MODES)
        self._miss_subject(request, call)

    def _register(self, request: Any, call: QuickCall) -> Never:
        del call
        if not request.subject:
            raise InvalidArgument("subject is empty")
        raise Refused(
            Code.FAILED_PRECONDITION,
            f"schema subject {request.subject[:SHOWN]!r} cannot be registered: {NO_REGISTRY}",
        )

    # ------------------------------------------------------------ topics

    def _configure(self, request: Any, call: QuickCall) -> Never:
        _check_one_of("validation_policy", request.validation_policy, _POLICIES)
        self._check_topic(request)
        if not request.schema_subject:
            raise InvalidArgument("schema_subject is empty")
        del call
        raise Refused(Code.NOT_FOUND, _not_found(request.schema_subject))

    def _update_policy(self, request: Any, call: QuickCall) -> Any:
        del call
        _check_one_of("validation_policy", request.validation_policy, _POLICIES)
        self._check_topic(request)
        is_asked = request.validation_policy.lower() != _NO_POLICY
        if is_asked or request.enable_payload_validation:
            raise Refused(
                Code.FAILED_PRECONDITION,
                f"topic {request.topic_name} has no schema to validate with: {NO_REGISTRY}",
            )
        return danube_schema.UpdateTopicValidationPolicyResponse(
            success=True, message="nothing is validated"
        )

    def _get_config(self, request: Any, call: QuickCall) -> Any:
        del call
        self._check_topic(request)
        return danube_schema.GetTopicSchemaConfigResponse(validation_policy=_NO_POLICY)

    def _check_topic(self, request: Any) -> None:
        name = parse_topic_name(request.topic_name)
        if self._door.lookup(name) is None:
            raise TopicNotFound(f"topic {name} does not exist; a producer creates it")


def _check_one_of(what: str, value: str, values: tuple[str, ...]) -> None:
    if value.lower() not in values:
        raise InvalidArgument(f"{what} is {value[:SHOWN]!r}; it must be one of {', '.join(values)}")
