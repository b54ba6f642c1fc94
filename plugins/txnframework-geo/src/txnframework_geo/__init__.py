"""
Replicates committed transactions, whole, from one deployment to another.

``Replicator`` does the work, and ``txnframework replicate`` runs it. ``is_replicated`` returns whether a message came
from another deployment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnframework_geo._origins import ID_HEADER, PATH_HEADER, is_replicated
from txnframework_geo._values import Replication, Stage, Step

if TYPE_CHECKING:
    from txnframework_geo._replicator import Replicator

__all__ = ["ID_HEADER", "PATH_HEADER", "Replication", "Replicator", "Stage", "Step", "is_replicated"]

if not TYPE_CHECKING:  # a type checker sees the import above

    def __getattr__(name: str) -> object:
        """Import ``Replicator`` on first use, so that the command line lists commands without importing the client."""
        if name != "Replicator":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from txnframework_geo._replicator import Replicator

        globals()[name] = Replicator
        return Replicator
