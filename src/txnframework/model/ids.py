"""Ids of transactions and of the branches that write in them, from ``txnframework.values``."""

from __future__ import annotations

from txnframework.values import (
    BRANCH_BITS,
    COORDINATOR_BITS,
    LOG_FAMILY,
    LOG_FAMILY_BIT,
    METADATA_FAMILY,
    NUMBER_BITS,
    Branch,
    TxnID,
    TxnText,
)

__all__ = [
    "BRANCH_BITS",
    "COORDINATOR_BITS",
    "LOG_FAMILY",
    "LOG_FAMILY_BIT",
    "METADATA_FAMILY",
    "NUMBER_BITS",
    "Branch",
    "TxnID",
    "TxnText",
]
