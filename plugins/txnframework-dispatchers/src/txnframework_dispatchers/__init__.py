"""Dispatchers: how the consumers of one subscription share its messages, one for each subscription type."""

from __future__ import annotations

from txnframework_dispatchers._exclusive import ExclusiveDispatcher
from txnframework_dispatchers._failover import FailoverDispatcher
from txnframework_dispatchers._key_shared import KeySharedDispatcher
from txnframework_dispatchers._shared import SharedDispatcher

__all__ = ["ExclusiveDispatcher", "FailoverDispatcher", "KeySharedDispatcher", "SharedDispatcher"]
