"""The protos say what Danube v0.15.1 says: `danube_v0_15_1.txt` is the list of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from danubius.edge.grpc.messages import POOL, danube, danube_admin, danube_schema

LISTED = Path(__file__).with_name("danube_v0_15_1.txt")
SERVICES = {
    danube: ["ProducerService", "ConsumerService", "Discovery", "HealthCheck", "StorageService"],
    danube_schema: ["SchemaRegistry"],
    danube_admin: ["BrokerAdmin", "ClusterAdmin", "NamespaceAdmin", "TopicAdmin", "SecurityAdmin"],
}
TYPES = {1: "double", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 12: "bytes", 13: "uint32"}


def listed(package: str) -> set[str]:
    """One line each for methods, fields and enums, with what they belong to in front."""
    found: set[str] = set()
    current, owner = "", ""
    for line in LISTED.read_text().splitlines():
        if line.startswith("package "):
            current = line.split()[1]
        elif current != package:
            continue
        elif line.startswith("enum "):
            found.add(line)
        elif line.startswith("  "):
            found.add(f"{owner}: {line.strip()}")
        else:
            owner = line
            found.add(line)
    return found


def described(package: Any) -> set[str]:
    file = POOL.FindFileContainingSymbol(f"{package.name}.{SERVICES[package][0]}")
    found: set[str] = set()
    for service in file.services_by_name.values():
        found.add(f"service {service.name}")
        for one in service.methods:
            stream = "stream " if one.server_streaming else ""
            line = f"{one.name} {one.input_type.name} {stream}{one.output_type.name}"
            found.add(f"service {service.name}: {line}")
    enums = list(file.enum_types_by_name.values())
    for message in file.message_types_by_name.values():
        found.add(f"message {message.name}")
        enums += message.enum_types
        for field in message.fields:
            line = f"{field.name} {field.number} {field_type(field)}"
            found.add(f"message {message.name}: {line}")
    for enum in enums:
        values = " ".join(f"{one.name}={one.number}" for one in enum.values)
        found.add(f"enum {enum.name} {values}")
    return found


def field_type(field: Any) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return "map<string,string>"
    of = field.message_type or field.enum_type
    name = of.name if of is not None else TYPES[field.type]
    oneof = field.containing_oneof
    if oneof is not None and oneof.name.startswith("_"):
        return f"optional {name}"
    return f"repeated {name}" if field.is_repeated else name


@pytest.mark.parametrize("package", list(SERVICES), ids=lambda package: package.name)
def test_services_messages_fields_and_enums_are_those_of_danube(package: Any) -> None:
    for name in SERVICES[package]:
        package.service(name)
    assert described(package) == listed(package.name)
