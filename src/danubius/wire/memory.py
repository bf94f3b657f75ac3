"""Memory for bytes that are about to come.

`bytearray(n)` writes n zeros, with the interpreter's lock held, and then the socket writes over them. CPython's own
constructor leaves the memory as it finds it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _find_constructor() -> Callable[[int], bytearray]:
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)
    try:
        new = prototype(("PyByteArray_FromStringAndSize", ctypes.pythonapi))
    except AttributeError:  # another interpreter than CPython
        return bytearray

    def make(size: int) -> bytearray:
        made: bytearray = new(None, size)
        return made

    return make


unfilled = _find_constructor()
"""A bytearray of this size; what is in it is anything, so none of it may be shown before it was written."""
