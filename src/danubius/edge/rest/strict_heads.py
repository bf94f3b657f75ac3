r"""HTTP heads without the leniencies that smuggling lives on.

h11 takes lines that end with a bare line feed, folded headers, and a length beside a transfer coding, as RFC 9112
lets it. Proxies read those in other ways, and then do not agree with us where a request ends: here they are refused,
and the connection ends.
"""

from __future__ import annotations

import re
from typing import Final

import h11
from h11._receivebuffer import ReceiveBuffer

_BARE_LINE_FEED: Final = re.compile(rb"(?<!\r)\n")
_VERSIONS: Final = (b"HTTP/1.0", b"HTTP/1.1")
_END: Final = b"\r\n\r\n"


class StrictBuffer(ReceiveBuffer):
    """What h11 reads heads and trailers from."""

    def __init__(self) -> None:
        super().__init__()
        self._checked_bytes = 0
        self.problem = ""
        """Why the peer was refused, in a sentence."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        if not self._data.startswith(b"\r\n"):
            end = self._data.find(_END, max(0, self._checked_bytes - len(_END)))
            stop = len(self._data) if end < 0 else end
            if _BARE_LINE_FEED.search(self._data, max(0, self._checked_bytes - 1), stop):
                self._refuse("a line ends with a bare line feed; end lines with CR LF")
            self._checked_bytes = stop
        lines = super().maybe_extract_lines()
        if lines is not None:
            self._checked_bytes = 0
            self._check(lines)
        return lines

    def _check(self, lines: list[bytearray]) -> None:
        version = bytes(lines[0]).rpartition(b" ")[2] if lines else b""
        if version.startswith(b"HTTP/") and version not in _VERSIONS:
            self._refuse("the request is of another version of HTTP; send HTTP/1.1")
        lengths = codings = 0
        for line in lines[1:]:
            if line.startswith((b" ", b"\t")):
                self._refuse("a header is folded over two lines; send it on one")
            name, _, value = bytes(line).lower().partition(b":")
            if name == b"content-length":
                lengths += 1 + value.count(b",")
            elif name == b"transfer-encoding":
                codings += 1
        if lengths > 1:
            self._refuse("there is more than one content-length; send one")
        if codings and lengths:
            self._refuse("there is a content-length beside transfer-encoding; send one of them")
        if codings and version != b"HTTP/1.1":
            self._refuse("transfer-encoding is of HTTP/1.1; send a content-length")

    def _refuse(self, problem: str) -> None:
        self.problem = problem
        raise h11.LocalProtocolError(problem)


def make_strict(connection: h11.Connection) -> StrictBuffer:
    """Have a connection that was not used yet read from such a buffer."""
    buffer = StrictBuffer()
    connection._receive_buffer = buffer  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # h11 has no door for it
    return buffer
