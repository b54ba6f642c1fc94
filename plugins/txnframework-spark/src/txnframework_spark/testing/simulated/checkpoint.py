"""Spark's checkpoint: the offsets of each batch before it runs, and the number of batches known to be committed."""

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
    """The content of a checkpoint; ``offsets`` has one for each batch, ``commits`` is the number of finished ones."""

    query: str
    offsets: tuple[dict[str, Any], ...] = ()
    commits: int = 0


class Checkpoint:
    """
    One checkpoint directory.

    It is stored in the metadata store, where it survives every process, under a key that the framework does not use.
    """

    def __init__(self, host: Host, name: str) -> None:
        self.name = name
        self._host = host
        self._key = Key(f"/simulated-checkpoint/of/{name}")

    @classmethod
    async def current(cls, host: Host) -> Checkpoint | None:
        """Return the checkpoint with which a new run starts; None: there was no run yet."""
        found = await outlast(host, lambda: host.metadata.get(_CURRENT))
        return None if found is None else cls(host, found.value.decode())

    async def use(self) -> None:
        """Make new runs start with this checkpoint."""
        put = Put(_CURRENT, self.name.encode(), Expect.ANY)
        await outlast(self._host, lambda: self._host.metadata.put(put))

    async def load(self) -> Kept | None:
        """Return its content."""
        found = await outlast(self._host, lambda: self._host.metadata.get(self._key))
        return None if found is None else msgspec.json.decode(found.value, type=Kept)

    async def make(self, kept: Kept) -> None:
        """Create it anew with the saved content of another one."""
        put = Put(self._key, msgspec.json.encode(kept), Expect.ANY)
        await outlast(self._host, lambda: self._host.metadata.put(put))

    async def keep_offset(self, batch: int, end: dict[str, Any]) -> None:
        """
        Store the end of a batch before it runs; a stored end is final.

        :raises Overtaken: another run has stored another end.
        """

        def edit(kept: Kept) -> Kept:
            if len(kept.offsets) > batch:
                if kept.offsets[batch] != end:
                    raise Overtaken(f"batch {batch} of checkpoint {self.name} was planned by another run")
                return kept
            return msgspec.structs.replace(kept, offsets=(*kept.offsets, end))

        await self._change(edit)

    async def keep_commit(self, batch: int) -> None:
        """Store that a batch is finished."""
        await self._change(lambda kept: msgspec.structs.replace(kept, commits=max(kept.commits, batch + 1)))

    async def forget_commits(self, commits: int) -> None:
        """Reduce the number of finished batches; the batches that are repeated are planned as before."""
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
