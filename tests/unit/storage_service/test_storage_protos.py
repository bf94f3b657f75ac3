"""The proto: what is shipped is what is written."""

from __future__ import annotations

import importlib
from importlib import resources
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from danubius.storage_service import messages

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = resources.files("danubius.storage_service") / "protos"


def test_what_is_shipped_was_compiled_from_what_is_written(tmp_path: Path) -> None:
    target = tmp_path / "set"
    protoc: Any = importlib.import_module("grpc_tools.protoc")  # it has no types
    assert (
        protoc.main(
            ["protoc", f"-I{_FOLDER}", f"--descriptor_set_out={target}", f"{_FOLDER}/storage.proto"]
        )
        == 0
    )
    shipped = FileDescriptorSet.FromString((_FOLDER / "storage.binpb").read_bytes())
    assert FileDescriptorSet.FromString(target.read_bytes()) == shipped, "run `make protos`"


def test_numbers_of_the_fields_that_every_server_reads() -> None:
    def fields(name: str) -> str:
        found = getattr(messages, name).DESCRIPTOR.fields
        return " ".join(f"{field.name}={field.number}" for field in found)

    assert fields("Writer") == "store=1 epoch=2 process=3 call=4"
    assert fields("Append") == "ref=1 create=2 at=3 data=4 crc32c=5"
    assert fields("Piece") == "data=1 crc32c=2"
    assert fields("Known") == (
        "ref=1 epoch=2 base_offset=3 end_offset=4 data_bytes=5 index_rows=6 is_sealed=7"
    )
