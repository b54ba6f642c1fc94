"""A proxy that forwards every attribute it does not override."""

from __future__ import annotations

from typing import Any

from zope.interface import directlyProvides, providedBy


class ForwardingProxy:
    """
    Forwards every attribute that a subclass does not override, and provides the interfaces of the object behind it.
    """

    def __init__(self, behind: Any) -> None:
        self._behind = behind
        # The proxy also provides the capabilities of the object behind it, so that callers use it in the same way.
        directlyProvides(self, providedBy(behind))

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the object behind this proxy."""
        if name.startswith("__"):  # attributes by which Python and zope inspect an object
            raise AttributeError(name)
        return getattr(self._behind, name)
