"""Which logs are switched to share entries, or not to, whatever the hosts' configurations say: records, one a scope."""

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
    """The two kinds of logs, as they are named in keys."""

    TRANSACTIONS = "transactions"
    PENDING_ACKS = "pending-acks"


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """
    Which logs of a kind: all of them; with ``outer`` those of one coordinator or topic; with ``inner`` as well that of
    one of the topic's subscriptions.
    """

    outer: str = ""
    inner: str = ""

    def covers(self, log: Scope) -> bool:
        """Return whether a log is among these."""
        return self in (log, Scope(log.outer), Scope())

    def __str__(self) -> str:
        """Return it for people."""
        if not self.outer:
            return "all"
        return f"subscription {self.inner} of {self.outer}" if self.inner else self.outer


class SwitchDocument(Document):
    """What the record of a scope says."""

    enabled: bool
    switched_ms: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a log's records share entries, and what says so: a switch of ``scope``, or (None) the configuration."""

    enabled: bool
    scope: Scope | None = None


class Switches:
    """What is switched of one kind of log."""

    def __init__(self, switched: Mapping[Scope, bool]) -> None:
        self._switched = switched

    def decide(self, log: Scope, *, configured: bool) -> Decision:
        """Return what holds for a log: what is switched for it alone, else for its topic, else for all."""
        for scope in (log, Scope(log.outer), Scope()):
            if scope in self._switched:
                return Decision(self._switched[scope], scope)
        return Decision(configured)


async def load_switches(store: IMetadataStore, kind: LogKind) -> Switches:
    """Return what is switched."""
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
    Switch a scope; None: leave it to a wider one, or to the configuration.

    :raises OutcomeUnknown: it may be switched; doing it again is safe.
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
    """Return the range of a kind's switches; ``0`` is the character after ``/``."""
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
