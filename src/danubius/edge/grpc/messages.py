"""The messages and services of the protos, in a descriptor pool of their own.

`protos/NAME.binpb` is what protoc made of `protos/NAME.proto` (`make protos`; a test compares them). Invariant: nothing
here is put into protobuf's default pool, so a process may import Danube's own client, whose generated code registers
the same names there, beside this broker.

    danube.MessageResponse(request_id=1)      a message
    danube.service("HealthCheck")             the descriptor of a service
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

POOL: Final = DescriptorPool()


class Package:
    """One of the protos: its messages are its attributes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_loaded = False

    def __getattr__(self, name: str) -> Any:
        """The class of a message; enums are found on the message that has them, or with `enum`."""
        if name.startswith("_"):
            raise AttributeError(name)
        self.load()
        try:
            descriptor = POOL.FindMessageTypeByName(f"{self.name}.{name}")
        except KeyError:
            raise AttributeError(f"{self.name} has no message {name}") from None
        found = GetMessageClass(descriptor)
        setattr(self, name, found)  # the next look-up finds it without asking here
        return found

    def service(self, name: str) -> ServiceDescriptor:
        self.load()
        return POOL.FindServiceByName(f"{self.name}.{name}")

    def enum(self, name: str) -> dict[str, int]:
        """The values of an enum by their names; `Message.Enum` for one inside a message."""
        self.load()
        found = POOL.FindEnumTypeByName(f"{self.name}.{name}")
        return {value.name: value.number for value in found.values}

    def load(self) -> None:
        """Put it into the pool; the first use does it too."""
        if not self._is_loaded:
            folder = resources.files("danubius.edge.grpc") / "protos"
            compiled = FileDescriptorSet.FromString((folder / f"{self.name}.binpb").read_bytes())
            for file in compiled.file:
                POOL.AddSerializedFile(file.SerializeToString())
            self._is_loaded = True


danube: Final = Package("danube")
danube_schema: Final = Package("danube_schema")
danube_admin: Final = Package("danube_admin")


def load_all() -> None:
    """Put all three into the pool, for who wants to describe them."""
    for package in (danube, danube_schema, danube_admin):
        package.load()
