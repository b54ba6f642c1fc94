"""
Every public exception: one class for each case that a caller can branch on, with the details as attributes.

The families, by the caller's next step:

* ``InvalidInput``: invalid usage by a person; report it and stop.
* ``Conflict``: the state forbids the call; read again, then decide.
* ``NotFound``: the object does not exist.
* ``Unavailable``: trying again may help.
* ``OutcomeUnknown``: the operation may or may not have been applied; read before trying again.
* ``Closed``: this object was closed; open another.
* ``Corrupt``: stored data cannot be read; never skipped silently.
"""

from __future__ import annotations

from txnframework.errors._conflicts import (
    BacklogQuotaExceeded,
    CommitOrderUnknown,
    CompactedInOtherOrder,
    Conflict,
    ConsumerBusy,
    Fenced,
    InvalidTransactionState,
    LayoutConflict,
    LeaseHeld,
    MigrationRefused,
    NotTransactionOwner,
    SubscriptionOwnedElsewhere,
    TopicExists,
    TopicInUse,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionHasFailedOperations,
    VersionMismatch,
)
from txnframework.errors._failures import (
    Closed,
    EndTransactionTimeout,
    LeaseLost,
    OutcomeUnknown,
    ReceiveTimeout,
    Unavailable,
)
from txnframework.errors._missing_objects import (
    EntryTrimmed,
    LedgerNotFound,
    NotFound,
    SubscriptionNotFound,
    TopicNotFound,
    TransactionNotFound,
)
from txnframework.errors._root import TxnFrameworkError, ascii_safe, excerpt
from txnframework.errors._store_conflicts import (
    DeploymentClosed,
    LedgerClosed,
    LedgerSealed,
    StoreMismatch,
    lost_end,
    lost_segment,
)
from txnframework.errors._stored_data import (
    Corrupt,
    CorruptEntry,
    CorruptRecord,
    UndecodableMessage,
    UnknownFormat,
    entry_named,
)
from txnframework.errors._usage import (
    ConfigurationError,
    InvalidInput,
    InvalidName,
    MissingExtra,
    PluginContractError,
    PluginError,
    UnknownPlugin,
    UnusableServer,
    WithoutTransactions,
)

__all__ = [
    "BacklogQuotaExceeded",
    "Closed",
    "CommitOrderUnknown",
    "CompactedInOtherOrder",
    "ConfigurationError",
    "Conflict",
    "ConsumerBusy",
    "Corrupt",
    "CorruptEntry",
    "CorruptRecord",
    "DeploymentClosed",
    "EndTransactionTimeout",
    "EntryTrimmed",
    "Fenced",
    "InvalidInput",
    "InvalidName",
    "InvalidTransactionState",
    "LayoutConflict",
    "LeaseHeld",
    "LeaseLost",
    "LedgerClosed",
    "LedgerNotFound",
    "LedgerSealed",
    "MigrationRefused",
    "MissingExtra",
    "NotFound",
    "NotTransactionOwner",
    "OutcomeUnknown",
    "PluginContractError",
    "PluginError",
    "ReceiveTimeout",
    "StoreMismatch",
    "SubscriptionNotFound",
    "SubscriptionOwnedElsewhere",
    "TopicExists",
    "TopicInUse",
    "TopicNotFound",
    "TransactionConflict",
    "TransactionDomainMismatch",
    "TransactionHasFailedOperations",
    "TransactionNotFound",
    "TxnFrameworkError",
    "Unavailable",
    "UndecodableMessage",
    "UnknownFormat",
    "UnknownPlugin",
    "UnusableServer",
    "VersionMismatch",
    "WithoutTransactions",
    "ascii_safe",
    "entry_named",
    "excerpt",
    "lost_end",
    "lost_segment",
]

for _name in __all__:
    # Tracebacks, logs and pickles show the module that programs import from.
    globals()[_name].__module__ = __name__
