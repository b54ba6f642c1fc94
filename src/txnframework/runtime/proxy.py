"""A proxy that forwards every attribute it does not override."""

from __future__ import annotations

from typing import Any

from zope.interface import directlyProvides, providedBy


class ForwardingProxy:
    """Passes on whatever a subclass does not measure, and promises what the one behind it promises."""

    def __init__(self, behind: Any) -> None:
        self._behind = behind
        # Its capabilities, too, or it would be used in another way.
        directlyProvides(self, providedBy(behind))

    def __getattr__(self, name: str) -> Any:
        """Return what the one behind has of that name."""
        if name.startswith("__"):  # what Python and zope ask an object about itself
            raise AttributeError(name)
        return getattr(self._behind, name)
