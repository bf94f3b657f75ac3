"""Small for `make test`, at full size for `make prove`.

A test that exists in both sizes is marked `grows`. One that is long in any size is marked `prove`: `make prove` alone
runs it.
"""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

IS_PROOF: Final = os.environ.get("DANUBIUS_PROVE") == "1"
"""Whether this is `make prove`."""


def sized(small: T, full: T) -> T:
    return full if IS_PROOF else small
