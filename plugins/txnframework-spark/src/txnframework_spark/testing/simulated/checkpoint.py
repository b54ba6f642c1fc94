"""Spark's checkpoint: the offsets of each batch before it runs, and how many batches are known to be committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from txnframework.broker import Host
from txnframework.errors import Conflict, OutcomeUnknown, VersionMismatch
from txnframework.model.metadata import Expect, Key, Put
from txnframework_spark.outage import outlast

_CURRENT: Final = Key("/simulated-checkpoint/current")


class Overtaken(Conflict):
    """Another run has written another offset for the same batch to this checkpoint; Spark stops the query."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in a checkpoint; ``offsets`` has one for each batch, ``commits`` says how many are done."""

    query: str
    offsets: tuple[dict[str, Any], ...] = ()
    commits: int = 0


class Checkpoint:
    """
    One checkpoint directory.

    It stands in the metadata store, where it survives every process; a record of no key that the framework knows.
    """

    def __init__(self, host: Host, name: str) -> None:
        self.name = name
        self._host = host
        self._key = Key(f"/simulated-checkpoint/of/{name}")

    @classmethod
    async def current(cls, host: Host) -> Checkpoint | None:
        """Return the one that a new run is started with; None: there was no run yet."""
        found = await outlast(host, lambda: host.metadata.get(_CURRENT))
        return None if found is None else cls(host, found.value.decode())

    async def use(self) -> None:
        """Let new runs be started with this one."""
        put = Put(_CURRENT, self.name.encode(), Expect.ANY)
        await outlast(self._host, lambda: self._host.metadata.put(put))

    async def load(self) -> Kept | None:
        """Return what it holds."""
        found = await outlast(self._host, lambda: self._host.metadata.get(self._key))
        return None if found is None else msgspec.json.decode(found.value, type=Kept)

    async def make(self, kept: Kept) -> None:
        """Make it anew, with what was saved of another one."""
        put = Put(self._key, msgspec.json.encode(kept), Expect.ANY)
        await outlast(self._host, lambda: self._host.metadata.put(put))

    async def keep_offset(self, batch: int, end: dict[str, Any]) -> None:
        """
        Write where a batch ends, before it runs; once written it stays so.

        :raises Overtaken: another run has written another end.
        """

        def edit(kept: Kept) -> Kept:
            if len(kept.offsets) > batch:
                if kept.offsets[batch] != end:
                    raise Overtaken(f"batch {batch} of checkpoint {self.name} was planned by another run")
                return kept
            return msgspec.structs.replace(kept, offsets=(*kept.offsets, end))

        await self._change(edit)

    async def keep_commit(self, batch: int) -> None:
        """Write that a batch is done."""
        await self._change(lambda kept: msgspec.structs.replace(kept, commits=max(kept.commits, batch + 1)))

    async def forget_commits(self, commits: int) -> None:
        """Know no more than this of what is done; the batches that come again are planned as before."""
        await self._change(lambda kept: msgspec.structs.replace(kept, commits=min(kept.commits, commits)))

    async def _change(self, edit: Callable[[Kept], Kept]) -> None:
        async def once() -> None:
            while True:
                found = await self._host.metadata.get(self._key)
                assert found is not None
                before = msgspec.json.decode(found.value, type=Kept)
                after = edit(before)
                if after == before:
                    return
                try:
                    await self._host.metadata.put(Put(self._key, msgspec.json.encode(after), found.version))
                except (VersionMismatch, OutcomeUnknown):
                    continue
                return

        await outlast(self._host, once)
