"""The streams of the ledgers of one installation, and the record that describes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from txnframework.errors import Corrupt, OutcomeUnknown, StoreMismatch, Unavailable
from txnframework_nats._options import replicas_of
from txnframework_nats.ledgers._options import NatsLedgerOptions
from txnframework_nats.ledgers._records import Numbering, frame, unframe
from txnframework_nats.ledgers._requests import Draft, Refusal, Requests, Unanswered
from txnframework_nats.ledgers._shard import Shard

logger = logging.getLogger(__name__)

_TRIES = 20
_PAUSE_S = 0.05


class _Root(msgspec.Struct, frozen=True, array_like=True):
    """
    ``identity``: of the metadata store. ``streams``: their number. ``complete``: all of them were created.
    ``skipped``: no ledger that is created from now on has an id up to this one.

    A stream that is missing afterwards was lost, with what it held.
    """

    identity: str
    streams: int
    complete: bool
    skipped: int


_decoder = msgspec.msgpack.Decoder(_Root)


class Installation:
    """The streams of one installation, found or created, and the identity of the metadata store they belong to."""

    def __init__(self, requests: Requests, prefix: str) -> None:
        self.identity = ""
        self.shards: tuple[Shard, ...] = ()
        self.skipped = 0
        self._requests = requests
        self._prefix = prefix
        self._first = Shard(requests, prefix, 0)

    async def open(self, identity: str | None, new_identity: str, options: NatsLedgerOptions) -> None:
        """
        Find the streams, or create them.

        :param identity: of the metadata store that they must belong to; None: any.
        :param new_identity: what new streams belong to if ``identity`` is None.
        :raises StoreMismatch: they belong to another metadata store, or cannot keep what they confirm.
        :raises Unavailable: the servers do not answer, or refuse a stream.
        """
        replicas = replicas_of(self._requests.connection.servers, options)
        created = await self._first.describe() or await self._first.create(replicas, options.stream_bytes_max)
        self._first.require_fitting(created)
        root, number = await self._root(_Root(identity or new_identity, options.streams, False, 0))
        if identity is not None and root.identity != identity:
            raise StoreMismatch(
                f"the ledgers in {self._prefix} belong to {root.identity}, the metadata store is {identity}"
            )
        shards = tuple(Shard(self._requests, self._prefix, one) for one in range(root.streams))
        if not root.complete:
            # Crash window: a process that dies here leaves some streams, and the next opener creates the others.
            for shard in shards:
                await shard.create(replicas, options.stream_bytes_max)
            await self._replace(msgspec.structs.replace(root, complete=True), number)
        await self._check(shards, options.sync_always)
        self.identity, self.shards, self.skipped = root.identity, shards, root.skipped

    async def take_identity(self, identity: str) -> None:
        """
        Belong to a metadata store of another identity.

        :raises OutcomeUnknown: that may be so or not; repeat it.
        """
        root = await self._changed(lambda root: msgspec.structs.replace(root, identity=identity))
        self.identity = root.identity

    async def skip_ids(self, ledger_id: int) -> None:
        """
        Give no ledger id up to ``ledger_id`` from now on; no other process has the store open.

        :raises OutcomeUnknown: that may be so or not; repeat it.
        """
        root = await self._changed(lambda root: msgspec.structs.replace(root, skipped=max(root.skipped, ledger_id)))
        self.skipped = root.skipped

    def numbering(self, shard: Shard) -> Numbering:
        """Return how a new log in a stream numbers its ledgers."""
        return Numbering(self.skipped + shard.number, len(self.shards))

    async def last_ledger_id(self) -> int:
        """
        Return an id that is not below that of any ledger.

        :raises Unavailable: the servers do not answer.
        """
        found = await asyncio.gather(*(shard.describe() for shard in self.shards))
        last: int = max(one["state"]["last_seq"] for one in found if one is not None)
        return self.skipped + len(self.shards) * (last + 1)

    async def _changed(self, change: Callable[[_Root], _Root]) -> _Root:
        """Change the description, unless nothing is to be changed, and return it."""
        for _ in range(_TRIES):
            found = await self._requests.last_at_leader(self._first.stream, self._first.root)
            if found is None:
                raise Corrupt(f"the ledgers in {self._prefix} have lost their description")
            root = self._decode(found.data)
            if root == (changed := change(root)):
                return root
            await self._replace(changed, found.number)
        raise OutcomeUnknown(f"the description of the ledgers in {self._prefix} may have changed")

    async def _root(self, new: _Root) -> tuple[_Root, int]:
        """Return the description and the number of its message; store ``new`` if there is none."""
        for _ in range(_TRIES):
            found = await self._requests.last_at_leader(self._first.stream, self._first.root)
            if found is not None:
                return self._decode(found.data), found.number
            await self._replace(new, 0)
        raise Unavailable(f"the ledgers in {self._prefix} cannot be created")

    async def _replace(self, root: _Root, number: int) -> None:
        """Store a description in place of the one with this number; another process may be faster."""
        draft = Draft(self._first.root, frame(msgspec.msgpack.encode(root)), number)
        try:
            stored = await self._requests.store([draft])
        except Unanswered:
            await self._requests.attempts(_PAUSE_S).pause()
            return
        if isinstance(stored, Refusal) and not stored.is_outrun:
            raise Unavailable(f"the ledgers in {self._prefix} cannot be described: {stored.reason}")

    async def _check(self, shards: Sequence[Shard], sync_always: bool) -> None:
        found = await asyncio.gather(*map(self._described, shards))
        for shard, one in zip(shards, found, strict=True):
            if one is None:
                raise StoreMismatch(
                    f"stream {shard.stream} is missing: the servers have lost it, or are not those of this installation"
                )
            shard.require_fitting(one)
        if not sync_always:
            self._warn_of_loss([one for one in found if one is not None])

    async def _described(self, shard: Shard) -> dict[str, Any] | None:
        """
        Return a stream that was created, or None if the servers have lost it.

        Servers that have just elected a leader may not know a stream yet. So they are asked for some time.
        """
        attempts = self._requests.attempts()
        while (found := await shard.describe()) is None and not attempts.are_over:
            await attempts.pause()
        return found

    def _warn_of_loss(self, found: list[dict[str, Any]]) -> None:
        replicas = min((one.get("config") or {}).get("num_replicas", 1) for one in found)
        if replicas < 3:
            logger.warning(
                "the ledgers in %s are stored by %d server(s): what was confirmed survives the loss of power only if"
                " the servers run with sync_interval: always; if they do, set sync_always",
                self._prefix,
                replicas,
            )

    def _decode(self, message: bytes) -> _Root:
        what = f"the description of the ledgers in {self._prefix}"
        try:
            return _decoder.decode(unframe(message, what))
        except msgspec.MsgspecError as error:
            raise Corrupt(f"{what} is damaged: {error}") from error
