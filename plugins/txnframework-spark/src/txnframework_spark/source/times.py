"""Publish times in the range that Spark supports."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_MS_MAX: Final = (2**63 - 1) // 1_000


def times_ms(published_ms: memoryview) -> NDArray[np.int64]:
    """Return publish times in milliseconds, clipped to the range of Spark's microseconds; senders may set any time."""
    times: NDArray[np.int64] = np.clip(np.frombuffer(published_ms, dtype=np.int64), -_MS_MAX, _MS_MAX)
    return times
