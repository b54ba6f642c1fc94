"""Stored switches that override the hosts' configurations of batching: one record for each scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from txnframework.errors import CorruptRecord, OutcomeUnknown
from txnframework.interfaces import IMetadataStore
from txnframework.model import Expect, Key, KeyRange, Put
from txnframework.model.paths import escape, unescape
from txnframework.model.records import Document, decode, encode

_ROOT = "/log-batching"
_PAGE = 1_000


class LogKind(Enum):
    """The two kinds of logs, as named in keys."""

    TRANSACTIONS = "transactions"
    PENDING_ACKS = "pending-acks"


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """
    A set of logs of one kind. Empty: all logs. ``outer``: those of one coordinator or topic. ``inner`` as well: the log
    of one of the topic's subscriptions.
    """

    outer: str = ""
    inner: str = ""

    def covers(self, log: Scope) -> bool:
        """Return whether a log is within this scope."""
        return self in (log, Scope(log.outer), Scope())

    def __str__(self) -> str:
        """Return the scope in readable form."""
        if not self.outer:
            return "all"
        return f"subscription {self.inner} of {self.outer}" if self.inner else self.outer


class SwitchDocument(Document):
    """The contents of a scope's record."""

    enabled: bool
    switched_ms: int


@dataclass(frozen=True, slots=True)
class Decision:
    """
    Whether a log's records share entries, and the ``scope`` of the switch that decided it; None: the configuration did.
    """

    enabled: bool
    scope: Scope | None = None


class Switches:
    """The switches of one kind of log."""

    def __init__(self, switched: Mapping[Scope, bool]) -> None:
        self._switched = switched

    def decide(self, log: Scope, *, configured: bool) -> Decision:
        """
        Return the decision for a log: its own switch, else its topic's, else that for all logs, else the configuration.
        """
        for scope in (log, Scope(log.outer), Scope()):
            if scope in self._switched:
                return Decision(self._switched[scope], scope)
        return Decision(configured)


async def load_switches(store: IMetadataStore, kind: LogKind) -> Switches:
    """Return the stored switches."""
    switched: dict[Scope, bool] = {}
    keys: KeyRange | None = switches_range(kind)
    while keys is not None:
        page = await store.scan(keys, _PAGE)
        for record in page.records:
            switched[_scope_of(record.key.path, kind)] = decode(SwitchDocument, record).enabled
        assert page.resume is None or isinstance(page.resume, KeyRange)
        keys = page.resume
    return Switches(switched)


async def put_switch(store: IMetadataStore, kind: LogKind, scope: Scope, document: SwitchDocument | None) -> None:
    """
    Store the switch of a scope. None: use the switch of a wider scope, or the configuration.

    :raises OutcomeUnknown: the switch may be stored; repeating the call is safe.
    """
    key = _key(kind, scope)
    try:
        await _put(store, key, document)
    except OutcomeUnknown:
        await _put(store, key, document)


async def _put(store: IMetadataStore, key: Key, document: SwitchDocument | None) -> None:
    if document is None:
        await store.delete(key, Expect.ANY)
    else:
        await store.put(Put(key, encode(document), Expect.ANY))


def switches_range(kind: LogKind) -> KeyRange:
    """Return the key range of a kind's switches; ``0`` is the character after ``/``."""
    return KeyRange(f"{_ROOT}/{kind.value}/", f"{_ROOT}/{kind.value}0")


def _key(kind: LogKind, scope: Scope) -> Key:
    return Key(f"{_ROOT}/{kind.value}/{escape(scope.outer)}/{escape(scope.inner)}")


def _scope_of(path: str, kind: LogKind) -> Scope:
    parts = path.removeprefix(f"{_ROOT}/{kind.value}/").split("/")
    try:
        outer, inner = map(unescape, parts)
    except ValueError as error:
        raise CorruptRecord(path, "its key", str(error)) from error
    return Scope(outer, inner)
