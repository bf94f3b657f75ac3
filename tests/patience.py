"""How long a test waits for what must come.

Never for how fast anything is: a test that measures that fails on a busy machine and says nothing on a quick one.
"""

from __future__ import annotations

from typing import Final

HANG_S: Final = 300.0
"""What has not come after this never comes, on a machine ten times slower than ours too."""
PROGRAM_HANG_S: Final = 1800.0
"""The same for a program that starts Spark and goes through a whole story."""
SOON_S: Final = 0.05
"""For what must not come: a slow machine makes this see less, and never fail."""
LOOK_S: Final = 0.02
"""Between two looks at what tells nobody when it changes."""
