"""A copy that is killed at any step is completed by the next call, and is never used before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from copied_deployment import Scene

import txnframework
from txnframework.broker import Audit, CopyRequest, ForwardingProxy
from txnframework.broker.store_copy import digests
from txnframework.broker.store_copy.copier import MOVED, StoreCopy
from txnframework.broker.store_copy.pairs import make_pair
from txnframework.model import Limit, paths
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


class KilledError(BaseException):
    """The process was killed."""


class Doom:
    """Kills before or after the change of this number, or never."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left = at
        self.after = after

    @contextmanager
    def around(self) -> Iterator[None]:
        self.left -= 1
        doomed = self.left == 0
        if self.left < 0 or (doomed and not self.after):
            raise KilledError
        yield
        if doomed:
            raise KilledError


class Doomed(ForwardingProxy):
    """A store whose process is killed at a change."""

    def __init__(self, behind: Any, doom: Doom) -> None:
        super().__init__(behind)
        self._doom = doom

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in CHANGES:
            return found

        async def call(*arguments: Any) -> Any:
            with self._doom.around():
                return await found(*arguments)

        return call


class Run:
    """One process that copies a space into another one."""

    def __init__(self, source: MemorySpace, target: MemorySpace, clock: VirtualEnvironment, keep_source: bool) -> None:
        self.spaces = (source, target)
        self.clock = clock
        self.request = CopyRequest(keep_source)

    async def copy(self, doom: Doom) -> Any:
        stores = [
            store
            for space in self.spaces
            for store in (await space.open_metadata(), await space.open_ledgers(space.rows.identity or space.identity))
        ]
        try:
            doomed = [Doomed(store, doom) for store in stores]
            pairs = make_pair(doomed[0], doomed[1], "", ""), make_pair(doomed[2], doomed[3], "", "")
            return await StoreCopy(*pairs, self.request, self.clock).run()
        finally:
            for store in stores:
                store.crash()

    async def differing(self) -> int:
        stores = [store for space in self.spaces for store in (await space.open_metadata(), await space.open_ledgers())]
        try:
            return (await Audit(make_pair(*stores[:2], "", ""), make_pair(*stores[2:], "", "")).run()).differing
        finally:
            for store in stores:
                store.crash()


def is_open(space: MemorySpace) -> bool:
    """Return whether a process can open the deployment."""
    return space.rows.identity in (None, space.identity)


def holds_something(space: MemorySpace) -> bool:
    """Return whether a deployment has anything of the source."""
    found = space.records.scan(digests.EVERY_KEY, 100).records
    families = {paths.family_of(record.key.path) for record in found}
    return bool(families - digests.NOT_COPIED or space.rows.list_names("", "", 1))


@pytest.mark.parametrize("keep_source", [False, True])
@pytest.mark.parametrize("after", [False, True])
async def test_killed_at_every_change(
    memory: Stores, monkeypatch: pytest.MonkeyPatch, keep_source: bool, after: bool
) -> None:
    """Whatever was done, the copy cannot be opened before it is whole, and the next call completes it."""
    monkeypatch.setattr(digests, "READ", Limit(3))
    monkeypatch.setattr(digests, "PAGE", 7)
    clock = VirtualEnvironment()

    source = MemorySpace(clock)
    monkeypatch.setattr(NamedSpaces, "space", lambda *_: source)
    config = {"metadata": {"url": memory.url}, "retention": {"time_ms": 0}}
    async with txnframework.open(config, registry=memory.registry, environment=clock) as client:
        await Scene().play(client)
    identity = source.identity
    at = 0
    while True:
        at += 1
        target = MemorySpace(clock)
        run = Run(source, target, clock, keep_source)
        try:
            await run.copy(Doom(at, after=after))
        except KilledError:
            if is_open(target) and holds_something(target):
                assert not await run.differing(), "a part of the copy can be used"
                assert keep_source or not is_open(source), "both can be used"
        else:
            break
        report = await run.copy(Doom(10**9, after=False))
        assert not await run.differing()
        assert target.identity == target.rows.identity == report.identity
        assert (source.identity, source.rows.identity) == (
            identity,
            identity if keep_source else f"{MOVED}{report.identity}",
        )
        source.rows.take_identity(identity)
    assert at > 40, "the scene has become small"
