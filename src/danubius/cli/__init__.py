"""The command line: `danubius standalone | produce | consume | topics | namespaces | …`.

Exit codes are 0 for success, 1 for a failure with one line on stderr, 2 for wrong usage. Click and
rich are needed here and nowhere else, so the slim install gets a sentence instead of a traceback.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEEDED = ("click", "rich")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for name in _NEEDED:
        if not _is_installed(name):
            sys.stderr.write(
                f"danubius: the command line needs {name}: pip install 'danubius[cli]'\n"
            )
            return 2
    from danubius.cli.root import run

    return run(argv)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # blocked on purpose
        return False
