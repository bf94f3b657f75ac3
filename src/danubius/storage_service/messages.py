"""The messages and the service of `storage.proto`, in a descriptor pool of their own.

`protos/storage.binpb` is what protoc made of `protos/storage.proto` (`make protos`; a test compares them). The message
classes are this module's attributes: `messages.Writer(epoch=1)`.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE: Final = "danubius.storage.v1"


def _load() -> DescriptorPool:
    pool = DescriptorPool()
    folder = resources.files("danubius.storage_service") / "protos"
    compiled = FileDescriptorSet.FromString((folder / "storage.binpb").read_bytes())
    for file in compiled.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL: Final = _load()
SERVICE: Final = POOL.FindServiceByName(f"{PACKAGE}.LedgerStorage")


def __getattr__(name: str) -> Any:
    """The class of a message."""
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        found = GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    except KeyError:
        raise AttributeError(f"{PACKAGE} has no message {name}") from None
    globals()[name] = found  # the next look-up finds it without asking here
    return found
