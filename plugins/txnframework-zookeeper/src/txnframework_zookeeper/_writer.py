"""
Writes: each batch is one multi, planned with the cache, and planned again if the cache was out of date.

The outcome of a multi whose reply was lost is determined by reading the records that it writes. Every record holds the
token of the multi that wrote it last. After the reconnection, the multi was applied before the first read, or never
will be. So a record with the token, or one without a change, proves the outcome. If other clients have since
overwritten or deleted the record, the outcome stays unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from txnframework.errors import InvalidInput, OutcomeUnknown, TxnFrameworkError, Unavailable, VersionMismatch
from txnframework.model import Expect, Key, Put, PutSequential, Record, Step
from txnframework_zookeeper._chunk_writer import ChunkWriter
from txnframework_zookeeper._nodes import OP_BYTES, EmptyNodeCollector, NodeCache, create_surplus_parents
from txnframework_zookeeper._options import VALUES_TOGETHER_BYTES_MAX, MetadataOptions
from txnframework_zookeeper._plans import (
    Plan,
    Planner,
    RecordStates,
    StepPart,
    note_applied,
    part_of,
    require_expected,
    sequential_part,
)
from txnframework_zookeeper._root import SequenceNumbers
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._requests import CreateNode, MultiFailed, Node, NodeExists, Op, SetNode
from txnframework_zookeeper.tree._layout import is_private, partition_mark
from txnframework_zookeeper.tree._records import Chunks, RecordState, decode_node, home_of, select_chunked, token_of


async def resolve_outcome(
    zookeeper: ZooKeeperClient, plan: Plan, parts: Sequence[StepPart], last_zxid: int, lost: OutcomeUnknown
) -> int | None:
    """
    Return the transaction number of the multi; None: it was not applied, or changes nothing.

    A single deletion with ``Expect.ANY`` succeeded if the record is absent, whichever client deleted it. Otherwise it
    is not retried: a client that saw no record may have created a new one.

    :param last_zxid: the last transaction that this client had seen before it sent the multi.
    :raises OutcomeUnknown: reading does not show the outcome; the error is ``lost``.
    """
    if not any(part.writes for part in parts):
        return None
    try:
        found = await asyncio.gather(*map(zookeeper.get, plan.before))
        for node, (record, before) in zip(found, plan.before.items(), strict=True):
            is_removed = plan.records[record] is None
            if node is not None and not is_removed and token_of(node) == plan.token:
                return int(node.stat.mzxid)
            if node is not None and before is not None and _is_kept(node, before, is_removed):
                return None
            if node is None and before is None and await _is_untouched(zookeeper, record, last_zxid):
                return None
    except TxnFrameworkError as error:
        raise lost from error
    if len(parts) == 1 and parts[0].removes and parts[0].expected is Expect.ANY and found == [None]:
        return last_zxid
    raise lost


def _is_kept(node: Node, before: RecordState, is_removed: bool) -> bool:
    """Return whether a record is unchanged, or, if the multi was to delete it, not yet deleted."""
    return node.stat.mzxid == before.version or (is_removed and node.stat.czxid <= before.version)


async def _is_untouched(zookeeper: ZooKeeperClient, node: str, last_zxid: int) -> bool:
    """Return whether no node was created or deleted below the remaining ancestors of a node."""
    stat = None
    while stat is None and node:
        node = node[: node.rfind("/")]
        stat = await zookeeper.exists(node or "/")
    return stat is not None and stat.pzxid <= last_zxid


# ZooKeeper's default of jute.maxbuffer: a server closes the connection on a larger request.
REQUEST_BYTES_MAX = 1_048_575


class _Attempt(NamedTuple):
    """Whether this is the first attempt of a write, and the entries without a record that earlier attempts found."""

    is_first: bool
    orphans: set[str]


class Writer:
    """Applies batches for one client; ``client`` is a name unique to this client."""

    def __init__(
        self,
        zookeeper: ZooKeeperClient,
        cache: NodeCache,
        empty_nodes: EmptyNodeCollector,
        options: MetadataOptions,
        client: str,
    ) -> None:
        self._chunk_writer = ChunkWriter(
            zookeeper, cache, empty_nodes, client, options.attempts_max, options.empty_nodes_max
        )
        self._options = options
        self._zookeeper = zookeeper
        self._client, self._tokens = client, 0
        self._cache = cache
        self._planner = Planner(cache, options.index_entries_together_max)
        self.numbers = SequenceNumbers(zookeeper, options.number_block_size, options.nodes_known_max)
        self._empty_nodes = empty_nodes
        self._attempts_max = options.attempts_max

    async def apply(self, step: Step) -> tuple[Record, ...]:
        """
        Apply all steps, or none; return the records that the puts wrote.

        :raises VersionMismatch: a record was not as expected.
        :raises InvalidInput: a value is too large, or the batch without its chunks does not fit one request.
        :raises Unavailable: other clients changed the records in every attempt.
        """
        self._empty_nodes.start_due()
        self._chunk_writer.start_due()
        staged: dict[int, Chunks] = {}
        try:
            for number in self._select_chunked(step):
                staged[number] = await self._stage(step.puts[number])
            written = await self._apply(step, staged)
        except BaseException:
            # If the multi was applied after all, a record names them, and they are kept.
            for chunks in staged.values():
                self._chunk_writer.discard(chunks)
            raise
        return written

    async def close(self) -> None:
        """Stop the removal of leftover chunks and nodes."""
        await self._chunk_writer.close()

    async def _apply(self, step: Step, staged: dict[int, Chunks]) -> tuple[Record, ...]:
        prefixes = [put.prefix.path for put in step.puts if isinstance(put, PutSequential)]
        orphans: set[str] = set()
        for attempt in range(self._attempts_max):
            tried = _Attempt(attempt == 0, orphans)
            numbers = self.numbers.take(prefixes)
            if numbers is None:
                async with self.numbers.reserve(prefixes) as given:
                    written = await self._attempt(_steps(step, given.numbers, staged), given.op, tried)
                    given.is_applied = written is not None
            else:
                written = await self._attempt(_steps(step, numbers, staged), None, tried)
            if written is not None:
                return written
            for number, chunks in staged.items():
                if not await self._chunk_writer.is_staged(chunks):
                    self._chunk_writer.discard(chunks)
                    staged[number] = await self._stage(step.puts[number])
        raise Unavailable(
            f"{self._zookeeper.shown_url}: others changed the records of a write in each of"
            f" {self._attempts_max} attempts; try again"
        )

    def _select_chunked(self, step: Step) -> set[int]:
        """Return which of the puts are written in chunks."""
        sizes = [len(put.value) for put in step.puts]
        for size, put in zip(sizes, step.puts, strict=True):
            if size > self._options.value_bytes_max:
                raise InvalidInput(
                    f"a value of {size} bytes for {_key_of(put).path} is larger than"
                    f" metadata.options.value_bytes_max ({self._options.value_bytes_max}); write smaller records"
                )
        return select_chunked(sizes, self._options.value_in_record_bytes_max, VALUES_TOGETHER_BYTES_MAX)

    async def _stage(self, put: Put | PutSequential) -> Chunks:
        return await self._chunk_writer.stage(home_of(_key_of(put)), bytes(put.value))

    async def _attempt(
        self, parts: Sequence[StepPart], reserve: Op | None, tried: _Attempt
    ) -> tuple[Record, ...] | None:
        """Return the written records; None if something differs from the cache."""
        states = await self._read_states(parts, tried.is_first)
        if states is None:
            return None
        self._tokens += 1
        plan = self._planner.plan(parts, states, f"{self._client}.{self._tokens:x}", tried.orphans)
        if reserve is not None:
            plan.checks.append(reserve)
        zxid = await self._do(plan, parts, tried.is_first)
        if zxid is None:
            return None
        return tuple(Record(part.key, bytes(part.put.value), zxid) for part in parts if part.put is not None)

    async def _read_states(self, parts: Sequence[StepPart], is_first: bool) -> RecordStates | None:
        """
        Return the needed state of the records; None if one is not as expected and all must be read.

        The first attempt relies on the cache: the multi names the cached state, and is refused if it has changed. A
        record without an expected version is read in any case. Its cached state may come from an earlier life of the
        record with the same number of writes. A record under a number that was never given is not read: after a refusal
        another number is tried.
        """
        states: dict[str, RecordState | None] = {}
        to_read: list[StepPart] = []
        named = [part for part in parts if not part.is_sequential]
        for part in named:
            if not is_first:
                to_read.append(part)
            elif part.needs_state:
                state = self._cache.records.get(part.node)
                if state is not None and part.expected == state.version:
                    states[part.node] = state
                else:
                    to_read.append(part)
        if not to_read:
            return states
        read = await asyncio.gather(*map(self._read, to_read))
        fresh = dict(zip((part.node for part in to_read), read, strict=True))
        try:
            require_expected(to_read, fresh)
        except VersionMismatch:
            if len(to_read) == len(named):
                raise
            # An earlier record that was not read may differ as well.
            return None
        return {**states, **fresh}

    async def _read(self, part: StepPart) -> RecordState | None:
        node = await self._zookeeper.get(part.node)
        if node is None:
            self._cache.records.discard(part.node)
            return None
        mark = partition_mark(part.key.path, part.key.partition)
        state = decode_node(part.key.path, mark, node)[1]
        self._cache.records.put(part.node, state)
        return state

    async def _do(self, plan: Plan, parts: Sequence[StepPart], is_first: bool) -> int | None:
        """Send the multi; return its transaction number, or None if something differs from the cache."""
        missing = await self._missing(plan, is_first)
        try:
            missing = await create_surplus_parents(self._zookeeper, missing, self._note_created_parent)
        except MultiFailed as refusal:
            self._note_refused_parent(refusal)
            return None
        ops = plan.ops(missing)
        if not ops:
            return 0
        _require_small(ops, len(self._zookeeper.full("").encode()))
        last_zxid = self._zookeeper.session.last_zxid
        zxid: int | None
        try:
            zxid = await self._zookeeper.multi(ops)
        except MultiFailed as refusal:
            if isinstance(refusal.cause, NodeExists) and refusal.op.path in missing:
                self._note_refused_parent(refusal)
            else:
                self._cache.discard_nodes(plan.nodes())
            plan.note_refused(refusal)
            return None
        except OutcomeUnknown as lost:
            self._cache.discard_nodes(plan.nodes())
            # If the multi was applied, its ended chunks must be removed. If the outcome stays unknown, the new chunks
            # of the multi are checked too.
            self._chunk_writer.remove(plan.ended)
            zxid = await resolve_outcome(self._zookeeper, plan, parts, last_zxid, lost)
            if zxid is None:
                return None
        except BaseException:
            # The multi may have been applied, or may be applied later.
            self._cache.discard_nodes(plan.nodes())
            self._chunk_writer.remove(plan.ended)
            raise
        note_applied(self._cache, plan, missing, zxid, self._empty_nodes.add)
        self._chunk_writer.remove(plan.ended)
        return zxid

    def _note_created_parent(self, node: str) -> None:
        """
        Cache a node that was created before the multi that needs it; if that multi fails, the node is removed later.
        """
        self._cache.parents.put(node, True)
        self._empty_nodes.add(node)

    def _note_refused_parent(self, refusal: MultiFailed) -> None:
        """Update the cache after the creation of a parent node was refused."""
        if isinstance(refusal.cause, NodeExists):
            # Another client has created it since the read. The rest of the cache is unaffected.
            self._cache.parents.put(refusal.op.path, True)
        else:
            self._cache.discard_nodes([refusal.op.path])

    async def _missing(self, plan: Plan, is_first: bool) -> list[str]:
        """
        Return which parent nodes of leaves do not exist, the highest first.

        In the first attempt, a transaction's own node that is not cached is assumed to be missing. So the transaction's
        first operation costs one round trip.
        """
        unknown = {node for parent in plan.parents for node in self._cache.missing_parents(parent)}
        to_ask = [node for node in unknown if not (is_first and is_private(node))]
        if not to_ask:
            return sorted(unknown, key=len)
        found = await asyncio.gather(*map(self._zookeeper.exists, to_ask))
        there = {node for node, stat in zip(to_ask, found, strict=True) if stat is not None}
        for node in there:
            self._cache.parents.put(node, True)
        return sorted(unknown - there, key=len)


def _steps(step: Step, numbers: Sequence[str], staged: Mapping[int, Chunks]) -> list[StepPart]:
    """Return the steps in the order in which they are checked."""
    left = iter(numbers)
    puts = (
        sequential_part(put, next(left), staged.get(number))
        if isinstance(put, PutSequential)
        else part_of(put, staged.get(number))
        for number, put in enumerate(step.puts)
    )
    return [*map(part_of, step.checks), *puts, *map(part_of, step.deletes)]


def _key_of(put: Put | PutSequential) -> Key:
    return put.prefix if isinstance(put, PutSequential) else put.key


def _require_small(ops: Sequence[Op], root_bytes: int) -> None:
    size = len(ops) * (root_bytes + OP_BYTES)
    size += sum(len(op.path) + (len(op.data) if isinstance(op, CreateNode | SetNode) else 0) for op in ops)
    if size > REQUEST_BYTES_MAX:
        raise InvalidInput(
            f"a write of {size} bytes to {ops[-1].path} does not fit ZooKeeper's limit of {REQUEST_BYTES_MAX} bytes for"
            " a request (jute.maxbuffer); write fewer at once, or with fewer index entries"
        )
