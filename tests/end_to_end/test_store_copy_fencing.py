"""A copier that was replaced, or that meets a process it did not see, stops before it damages anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from copied_deployment import Scene

import txnframework
from txnframework.broker import CopyRequest, ForwardingProxy
from txnframework.broker.store_copy import digests
from txnframework.broker.store_copy.copier import StoreCopy
from txnframework.broker.store_copy.pairs import CopyablePair, make_pair
from txnframework.errors import InvalidInput, Unavailable
from txnframework.model import Limit, Put, paths
from txnframework.testing.clock import VirtualEnvironment
from txnframework_memory import MemorySpace
from txnframework_memory.plugin import NamedSpaces

if TYPE_CHECKING:
    from conftest import Stores

CHANGES = frozenset(
    (
        "acquire_lease", "import_entries", "import_ledger", "import_sequences", "put", "skip_ids", "skip_numbers",
        "take_identity",
    )
)  # fmt: skip
NEVER = 10**9


class DeafLease(ForwardingProxy):
    """A lease whose holder does not learn that it was lost."""

    async def lost(self) -> None:
        await asyncio.Event().wait()


class Suspension:
    """Suspends a process before the change of this number."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.change = ""
        self.reached = asyncio.Event()
        self.resumed = asyncio.Event()

    async def before(self, change: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.change = change
            self.reached.set()
            await self.resumed.wait()


class Suspended(ForwardingProxy):
    """A store whose process is suspended before a change."""

    def __init__(self, behind: Any, suspension: Suspension, *, is_deaf: bool) -> None:
        super().__init__(behind)
        self._suspension = suspension
        self._is_deaf = is_deaf

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in CHANGES:
            return found

        async def call(*arguments: Any) -> Any:
            await self._suspension.before(name)
            result = await found(*arguments)
            return DeafLease(result) if name == "acquire_lease" and self._is_deaf else result

        return call


class Surprised(ForwardingProxy):
    """A source in which a process changes a record right after this look at its leases."""

    def __init__(self, behind: Any, look: int) -> None:
        super().__init__(behind)
        self._looks_left = look

    async def scan(self, keys: Any, items_max: int) -> Any:
        store = super().__getattr__("scan")
        page = await store(keys, items_max)
        if keys == paths.leases_range(""):
            self._looks_left -= 1
            if self._looks_left == 0:
                await change_records(self)
        return page


async def change_records(metadata: Any) -> None:
    """Change every record that a copy has, as its users do."""
    async for page in digests.record_pages(metadata):
        for one in page:
            record = one.record
            await metadata.put(Put(record.key, record.value + b" ", record.version, one.indexes))


def content(space: MemorySpace) -> list[Any]:
    found = space.records.scan(digests.EVERY_KEY, NEVER).records
    kept = [(one.key, one.value) for one in found if paths.family_of(one.key.path) not in digests.NOT_COPIED]
    return [space.identity, space.rows.identity, space.rows.list_names("", "", NEVER), *kept]


class Copies:
    """Copies of one source; each copier has its own session."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(digests, "READ", Limit(3))
        monkeypatch.setattr(digests, "PAGE", 7)
        self.clock = VirtualEnvironment()
        self.source = MemorySpace(self.clock)
        self._opened: list[Any] = []
        monkeypatch.setattr(NamedSpaces, "space", lambda *_: self.source)

    async def play(self, stores: Stores) -> None:
        config = {"metadata": {"url": stores.url}, "retention": {"time_ms": 0}}
        async with txnframework.open(config, registry=stores.registry, environment=self.clock) as client:
            await Scene().play(client)

    async def stores(self, target: MemorySpace) -> list[Any]:
        """Open the four stores of a process."""
        opened: list[Any] = []
        for space in (self.source, target):
            opened.append(await space.open_metadata())
            opened.append(await space.open_ledgers(space.rows.identity or space.identity))
        self._opened += opened
        return opened

    def copier(self, stores: list[Any]) -> StoreCopy:
        pairs: list[CopyablePair] = [make_pair(*stores[at : at + 2], "", "") for at in (0, 2)]
        return StoreCopy(pairs[0], pairs[1], CopyRequest(), self.clock)

    def end(self) -> None:
        """End every session."""
        while self._opened:
            self._opened.pop().crash()

    async def end_leases(self, spaces: tuple[MemorySpace, ...]) -> None:
        """Grant the leases of a suspended copier to others."""
        for space in spaces:
            other = await space.open_metadata()
            held = await other.get(paths.lease_key("copy"))
            if held is not None:
                await other.break_lease("copy", held.version)
            other.crash()


@pytest.mark.parametrize("is_deaf", [True, False])
async def test_a_suspended_copier_that_was_replaced(
    memory: Stores, monkeypatch: pytest.MonkeyPatch, is_deaf: bool
) -> None:
    """Wherever it was suspended, it changes nothing in a copy that was completed and is used."""
    copies = Copies(monkeypatch)
    await copies.play(memory)
    source, at = copies.source, 0
    identity = source.identity
    while True:
        at += 1
        target = MemorySpace(copies.clock)
        suspension = Suspension(at)
        stores = [Suspended(one, suspension, is_deaf=is_deaf) for one in await copies.stores(target)]
        first = asyncio.ensure_future(copies.copier(stores).run())
        reached = asyncio.ensure_future(suspension.reached.wait())
        await asyncio.wait((first, reached), return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            reached.cancel()
            await first
            break
        await copies.end_leases((source, target))
        second = await copies.stores(target)
        await copies.copier(second).run()
        for one in second:
            one.crash()
        user = await target.open_metadata()
        await change_records(user)
        user.crash()
        used = content(source), content(target)
        suspension.resumed.set()
        (outcome,) = await asyncio.gather(first, return_exceptions=True)
        assert (content(source), content(target)) == used, suspension.change
        # The last identity may be given twice, and a copier without leases finds that the copy is verified.
        assert isinstance(outcome, Unavailable) or suspension.change in ("acquire_lease", "take_identity"), outcome
        copies.end()
        source.rows.take_identity(identity)
    assert at > 40, "the scene has become small"
    copies.end()


async def test_a_lost_lease_stops_the_copier(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for its next look."""
    copies = Copies(monkeypatch)
    await copies.play(memory)
    target, suspension = MemorySpace(copies.clock), Suspension(12)
    stores = await copies.stores(target)
    suspended = [Suspended(one, suspension, is_deaf=False) for one in stores]
    first = asyncio.ensure_future(copies.copier(suspended).run())
    await suspension.reached.wait()
    stores[0].crash()
    with pytest.raises(Unavailable, match="session of this copy has expired"):
        await first
    copies.end()


async def test_records_that_change_after_the_comparison(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that had the source open before it was closed, and confirms after the comparison, is found."""
    copies = Copies(monkeypatch)
    await copies.play(memory)
    target = MemorySpace(copies.clock)
    metadata, *others = await copies.stores(target)
    # The looks: before anything, when both are closed, and behind the comparison.
    with pytest.raises(Unavailable, match="changes records of the source"):
        await copies.copier([Surprised(metadata, 3), *others]).run()
    assert target.identity != target.rows.identity, "the copy can be used"
    copies.end()


async def test_other_ledgers_than_those_of_the_copy(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated call that names another ledger store copies nothing into it."""
    copies = Copies(monkeypatch)
    await copies.play(memory)
    target, other, suspension = MemorySpace(copies.clock), MemorySpace(copies.clock), Suspension(12)
    stores = [Suspended(one, suspension, is_deaf=True) for one in await copies.stores(target)]
    first = asyncio.ensure_future(copies.copier(stores).run())
    await suspension.reached.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    copies.end()
    *right, _ = await copies.stores(target)
    with pytest.raises(InvalidInput, match="not the ledgers of the copy"):
        await copies.copier([*right, await other.open_ledgers(other.identity)]).run()
    assert not other.rows.list_names("", "", 1)
    copies.end()
