"""The command line: `danubius standalone | produce | consume | topics | bench | demo`.

Exit codes are 0 for success, 1 for a failure with one line on stderr, 2 for wrong usage. Click and
rich are needed here and nowhere else, so the slim install gets a sentence instead of a traceback.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEEDED = {"click", "rich"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        from danubius.cli.root import run
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name not in _NEEDED:
            raise
        sys.stderr.write(f"danubius: the command line needs {name}: pip install 'danubius[cli]'\n")
        return 2
    return run(argv)
