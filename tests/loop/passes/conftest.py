"""Makes the programs of tests/loop importable from here."""

import sys
from pathlib import Path

for folder in (Path(__file__).parents[1], Path(__file__).parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
