"""A proxy that forwards every attribute it does not override."""

from __future__ import annotations

from typing import Any

from zope.interface import directlyProvides, providedBy


class ForwardingProxy:
    """Forwards all attributes that a subclass does not define, and provides the interfaces of its target."""

    def __init__(self, target: Any) -> None:
        self._target = target
        # Callers choose their algorithm by these interfaces.
        directlyProvides(self, providedBy(target))

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the target."""
        if name.startswith("__"):  # looked up by Python and zope on the proxy itself
            raise AttributeError(name)
        return getattr(self._target, name)
