"""Counts of what is asked of stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any

from zope.interface import providedBy

from txnframework import Client
from txnframework.broker import ForwardingProxy
from txnframework.interfaces import IMetadataStore
from txnframework.model import Applied, Delete, IndexRange, Key, KeyRange, Put, PutSequential, Step


class CountingStore(ForwardingProxy):
    """
    Forwards every call. ``written`` counts the records that were put, by the first part of their keys.

    ``rewritten`` counts those of them that replaced an earlier version. No ledger is beside this store, so that every
    record goes through it; an intent that is one step with an entry is one record, too.
    """

    location = object()

    _behind: IMetadataStore

    def __init__(self, behind: IMetadataStore) -> None:
        super().__init__(behind)
        self.written: Counter[str] = Counter()
        self.rewritten: Counter[str] = Counter()

    def _count(self, write: Put | PutSequential) -> None:
        kind = (write.prefix if isinstance(write, PutSequential) else write.key).path.split("/")[1]
        self.written[kind] += 1
        self.rewritten[kind] += isinstance(write, Put) and isinstance(write.expected, int)

    async def put(self, write: Put) -> int:
        self._count(write)
        return await self._behind.put(write)

    async def apply(self, step: Step, *transaction: Any) -> Applied:
        for put in step.puts:
            self._count(put)
        return await self._behind.apply(step, *transaction)


@contextmanager
def counted_calls(client: Client) -> Iterator[Counter[str]]:
    """
    Count the calls of both stores' methods by one client.

    The calls of a method with a key or a range are counted apart, by the first part of its path: ``get topic``.
    """
    calls: Counter[str] = Counter()
    replaced = [
        (store, method)
        for store in (client.host.metadata, client.host.ledgers)
        for method in sorted({name for role in providedBy(store) for name in role.names(all=True)})
        if iscoroutinefunction(getattr(store, method, None))
    ]
    for store, method in replaced:
        setattr(store, method, _counting(getattr(store, method), method, calls))
    try:
        yield calls
    finally:
        for store, method in replaced:
            delattr(store, method)


def _counting(call: Any, method: str, calls: Counter[str]) -> Any:
    async def counted(*arguments: Any) -> Any:
        calls[" ".join((method, *_kind(arguments[0] if arguments else None)))] += 1
        return await call(*arguments)

    return counted


def _kind(given: object) -> list[str]:
    """Return the first part of the path that a call is about, or the name of its index."""
    if isinstance(given, IndexRange):
        return [given.index]
    given = given.key if isinstance(given, Put | Delete) else given
    path = given.path if isinstance(given, Key) else given.start if isinstance(given, KeyRange) else ""
    return path.split("/")[1:2]
