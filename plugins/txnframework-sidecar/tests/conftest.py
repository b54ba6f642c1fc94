"""Makes the world of these tests importable: test modules are imported by path, so their folder is not on it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
