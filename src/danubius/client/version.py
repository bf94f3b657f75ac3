"""The version of this client: shown in the broker's logs and as `danubius.__version__`."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
CLIENT_NAME: Final = f"danubius-python/{VERSION}"
