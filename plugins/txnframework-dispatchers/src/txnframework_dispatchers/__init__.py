"""Dispatchers: how the consumers of one subscription share its messages, one for each subscription type."""

from __future__ import annotations

from txnframework_dispatchers._shared import KeySharedDispatcher, SharedDispatcher
from txnframework_dispatchers._single_active import ExclusiveDispatcher, FailoverDispatcher

__all__ = ["ExclusiveDispatcher", "FailoverDispatcher", "KeySharedDispatcher", "SharedDispatcher"]
