"""
Replicates committed transactions, whole, from one deployment to another.

``Replicator`` does the work, and ``txnframework replicate`` runs it. ``is_replicated`` returns whether a message came
from another deployment.
"""

from __future__ import annotations

from txnframework_geo._origins import ID_HEADER, PATH_HEADER, is_replicated
from txnframework_geo._replicator import Replicator
from txnframework_geo._values import Replication, Stage, Step

__all__ = ["ID_HEADER", "PATH_HEADER", "Replication", "Replicator", "Stage", "Step", "is_replicated"]
