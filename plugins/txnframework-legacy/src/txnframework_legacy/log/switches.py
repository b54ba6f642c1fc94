"""
Stored switches that override the hosts' configurations of batching, one record for each scope, and the watch on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from weakref import WeakValueDictionary

from txnframework.environment import Environment
from txnframework.errors import Closed, CorruptRecord, OutcomeUnknown, TxnFrameworkError
from txnframework.interfaces import IMetadataStore, IWatch
from txnframework.model import Expect, Key, KeyRange, Put
from txnframework.model.paths import escape, unescape
from txnframework.model.records import Document, decode, encode
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import start_task

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
        Return the decision for a log: by its own switch, or else its topic's switch, the switch for all logs, or the
        configuration.
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


RETRY_DELAY_MS = 1_000
"""The wait before switches that could not be read are read again."""


@dataclass(eq=False, slots=True)
class SwitchListener:
    """One log, whether its configuration enables batching, and the callback for changes."""

    log: Scope
    configured: bool
    notify: Callable[[bool], None]


class SwitchWatcher:
    """
    The switches of one kind of log, as this host has read them. They are watched while there are listeners.

    A host receives a change after a short delay. Until then it writes as before. Both forms of entries are readable.
    """

    def __init__(self, store: IMetadataStore, environment: Environment, kind: LogKind) -> None:
        self.kind = kind
        self._store = store
        self._backoff = Backoff(environment, RETRY_DELAY_MS, RETRY_DELAY_MS)
        self._switches = Switches({})
        self._listeners: set[SwitchListener] = set()
        self._watching: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def subscribe(self, listener: SwitchListener) -> None:
        """
        Report the current decision to a listener before this call returns. Report each later change until
        ``unsubscribe``.

        :raises Corrupt: a switch cannot be read, so the decision for the log is unknown.
        """
        async with self._lock:
            if self._watching is None:
                watch = await self._store.watch(switches_range(self.kind))
                try:
                    self._switches = await load_switches(self._store, self.kind)
                except BaseException:
                    await watch.close()
                    raise
                self._watching = start_task(self._watch(watch))
            self._listeners.add(listener)
            self._notify(listener)

    async def unsubscribe(self, listener: SwitchListener) -> None:
        """Stop reporting to a listener. Idempotent."""
        async with self._lock:
            self._listeners.discard(listener)
            if not self._listeners and self._watching is not None:
                self._watching.cancel()
                await asyncio.gather(self._watching, return_exceptions=True)
                self._watching = None

    def _notify(self, listener: SwitchListener) -> None:
        listener.notify(self._switches.decide(listener.log, configured=listener.configured).enabled)

    async def _watch(self, watch: IWatch) -> None:
        """Read the switches after every change; while they cannot be read, the last known ones apply."""
        try:
            while True:
                await watch.changed()
                while not await self._reload():
                    await self._backoff.pause(1)
        except Closed:
            return
        finally:
            await watch.close()

    async def _reload(self) -> bool:
        try:
            self._switches = await load_switches(self._store, self.kind)
        except Closed:
            raise
        except TxnFrameworkError:
            return False
        for listener in tuple(self._listeners):
            self._notify(listener)
        return True


class SwitchWatchers:
    """
    The watchers of one kind of switches, each shared by all users of one opened metadata store.

    A host opens its metadata store once, and a pending-ack store for each subscription. All of these share one watch.
    """

    def __init__(self, kind: LogKind) -> None:
        self._kind = kind
        self._watchers: WeakValueDictionary[IMetadataStore, SwitchWatcher] = WeakValueDictionary()

    def of(self, store: IMetadataStore, environment: Environment) -> SwitchWatcher:
        """Return the watcher of this opened store."""
        found = self._watchers.get(store)
        if found is None:
            found = self._watchers[store] = SwitchWatcher(store, environment, self._kind)
        return found
