"""
The plugin hooks: ``nats://host1,host2,host3/prefix`` as ledger store.

A store is offered here once it keeps the rules of its role. Each hook imports its implementation when it is called.
"""

from __future__ import annotations

from txnframework.interfaces import ILedgerStore
from txnframework.plugin import Provider, StoreContext, hookimpl


@hookimpl
def txnframework_ledger_stores() -> list[Provider[StoreContext, ILedgerStore]]:
    """Provide ``nats``."""
    from txnframework_nats.ledgers import ledger_providers

    return ledger_providers()
