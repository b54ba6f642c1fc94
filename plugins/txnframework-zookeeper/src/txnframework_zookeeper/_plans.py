"""The steps of a batch, and the plan of the one multi that applies them; pure: the current records are arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from txnframework.errors import VersionMismatch
from txnframework.model import Check, Delete, Expect, Expected, Key, Put, PutSequential, Step
from txnframework_zookeeper._nodes import NodeCache
from txnframework_zookeeper.connection._requests import (
    CheckNode,
    CreateNode,
    DeleteNode,
    MultiFailed,
    NodeExists,
    Op,
    SetNode,
)
from txnframework_zookeeper.tree._index import EntryLocation, entry_location
from txnframework_zookeeper.tree._layout import (
    is_lease,
    is_private,
    liveness_node,
    node_of,
    partition_mark,
    stores_partition,
)
from txnframework_zookeeper.tree._records import Chunks, Entries, RecordState, encode_node, ended, named

RecordStates = Mapping[str, RecordState | None]
"""The known state of records by node; None: the record does not exist."""


class StepPart(msgspec.Struct, frozen=True, gc=False):
    """
    One step of a batch at its node; without ``put`` and ``removes`` it is a check.

    ``chunks``: the staged chunks of the value to put.
    """

    key: Key
    node: str
    expected: Expected
    put: Put | None = None
    removes: bool = False
    is_sequential: bool = False
    chunks: Chunks | None = None

    @property
    def needs_state(self) -> bool:
        """Whether the step can only be performed with the record's known state."""
        return self.expected is not Expect.ABSENT and (self.expected is not Expect.ANY or self.writes)

    @property
    def writes(self) -> bool:
        """Whether the step changes something."""
        return self.removes or self.put is not None


def part_of(part: Check | Put | Delete, chunks: Chunks | None = None) -> StepPart:
    """Return a step with its node; raise InvalidInput for a key that cannot be stored."""
    put = part if isinstance(part, Put) else None
    return StepPart(part.key, node_of(part.key), part.expected, put, isinstance(part, Delete), chunks=chunks)


def sequential_part(write: PutSequential, number: str, chunks: Chunks | None = None) -> StepPart:
    """Return the step that writes under this number."""
    key = Key(f"{write.prefix.path}/{number}", write.prefix.partition or write.prefix.path)
    put = Put(key, write.value, Expect.ABSENT, write.indexes)
    return StepPart(key, node_of(key), Expect.ABSENT, put, is_sequential=True, chunks=chunks)


def require_expected(parts: Iterable[StepPart], states: RecordStates) -> None:
    """Raise VersionMismatch for the first step whose record is not as expected, among those with a known state."""
    for part in parts:
        if part.node not in states or part.expected is Expect.ANY:
            continue
        state = states[part.node]
        actual = None if state is None else state.version
        if actual != (None if part.expected is Expect.ABSENT else part.expected):
            raise VersionMismatch(part.key, actual)


class Plan(msgspec.Struct, gc=False):
    """
    One planned multi, and the state that it leaves once it was applied.

    ``parents``: nodes that must exist before it. ``made`` and ``removed``: leaves with their parent nodes. ``before``:
    the earlier state of the nodes that it writes; their new data holds ``token``. ``ended``: chunks that no record
    names after it.
    """

    token: str = ""
    before: dict[str, RecordState | None] = msgspec.field(default_factory=dict)
    checks: list[Op] = msgspec.field(default_factory=list)
    changes: list[Op] = msgspec.field(default_factory=list)
    parents: dict[str, None] = msgspec.field(default_factory=dict)
    records: dict[str, RecordState | None] = msgspec.field(default_factory=dict)
    made: list[EntryLocation] = msgspec.field(default_factory=list)
    removed: list[EntryLocation] = msgspec.field(default_factory=list)
    private: list[str] = msgspec.field(default_factory=list)
    orphans: set[str] = msgspec.field(default_factory=set)
    ended: list[Chunks] = msgspec.field(default_factory=list)

    def ops(self, missing: Sequence[str]) -> list[Op]:
        """Return the ops of the multi, given the missing parents, the highest first."""
        last = [DeleteNode(node) for node in self.private]
        return [*self.checks, *(CreateNode(node) for node in missing), *self.changes, *last]

    def nodes(self) -> list[str]:
        """Return every leaf that the multi touches."""
        return [*self.records, *(leaf.path for leaf in (*self.made, *self.removed))]

    def note_refused(self, refusal: MultiFailed) -> None:
        """
        Record whether an entry to be added exists already.

        An entry can exist although its record does not name it. This happens if another client replaced or deleted the
        record from an outdated cached state, in which the record did not have this entry. In this case the entry may
        be overwritten instead of created.
        """
        if any(refusal.op.path == leaf.path for leaf in self.made):
            (self.orphans.add if isinstance(refusal.cause, NodeExists) else self.orphans.discard)(refusal.op.path)


class Planner:
    """Makes plans, with the cache of a client."""

    def __init__(self, cache: NodeCache, entries_max: int) -> None:
        self._cache = cache
        self._entries_max = entries_max

    def plan(self, parts: Sequence[StepPart], states: RecordStates, token: str, orphans: set[str]) -> Plan:
        """
        Return the multi that performs the steps if the records are still in the given state.

        :param token: unique to this multi.
        :param orphans: entries to add that exist although their records do not name them; the multi takes them over.
        """
        plan = Plan(token, orphans=orphans)
        is_alone = len(parts) == 1
        for part in parts:
            state = states.get(part.node)
            if part.put is not None:
                self._put(plan, part, part.put, state)
            elif state is None:
                # The record must be absent when the multi is applied. For a single step it is enough that the read
                # found it absent.
                if part.expected is Expect.ABSENT or (part.removes and not is_alone):
                    self._require_absent(plan, part)
            elif part.removes:
                self._remove(plan, part, state)
            elif part.expected is not Expect.ANY:
                plan.checks.append(CheckNode(part.node, state.node_version))
                if is_lease(part.key.path):
                    # The next holder's node has the same version.
                    plan.checks.append(CheckNode(liveness_node(state.token)))
                plan.records[part.node] = state
        self._end_private(plan)
        return plan

    def _require_absent(self, plan: Plan, part: StepPart) -> None:
        plan.parents[_parent(part.node)] = None
        plan.changes += (CreateNode(part.node), DeleteNode(part.node))
        plan.records[part.node] = None

    def _put(self, plan: Plan, part: StepPart, put: Put, state: RecordState | None) -> None:
        path, mark = put.key.path, partition_mark(put.key.path, put.key.partition)
        before = {(index, key): depth for index, key, depth in state.entries} if state else {}
        wanted = dict.fromkeys([(entry.index, entry.key) for entry in put.indexes])
        for (index, key), depth in before.items():
            place = _existing_entry(index, key, path, mark, depth)
            if (index, key) in wanted:
                # Created again, so that watches of the index wake. The entry exists unless the record was created
                # again.
                plan.changes += (DeleteNode(place.path), CreateNode(place.path))
            else:
                plan.changes.append(DeleteNode(place.path))
                plan.removed.append(place)
        entries = tuple(
            [(*entry, before[entry] if entry in before else self._add(plan, *entry, path, mark)) for entry in wanted]
        )
        partition = put.key.partition if stores_partition(mark) else None
        data = encode_node(put.value, partition, entries, plan.token, part.chunks)
        if part.chunks is not None:
            plan.changes += named(part.chunks)
        self._end_chunks(plan, state)
        if state is None:
            plan.parents[_parent(part.node)] = None
            # ZooKeeper returns the transaction number of a multi for its writes, and not for its creations.
            plan.changes += (CreateNode(part.node), SetNode(part.node, data, 0))
            plan.records[part.node] = RecordState(0, 1, entries, plan.token, part.chunks)
        else:
            plan.changes.append(SetNode(part.node, data, state.node_version))
            plan.records[part.node] = RecordState(0, state.node_version + 1, entries, plan.token, part.chunks)
        plan.before[part.node] = state

    def _add(self, plan: Plan, index: str, key: bytes, path: str, mark: str) -> int:
        """Add an entry, no deeper than needed to keep its parent nodes small; return its depth."""
        depth = 0
        place = _existing_entry(index, key, path, mark, depth)
        while (self._cache.entry_counts.get(place.parent) or 0) >= self._entries_max:
            deeper = entry_location(index, key, path, mark, depth + 1)
            if deeper is None:
                break
            place, depth = deeper, depth + 1
        plan.parents[place.parent] = None
        if place.path in plan.orphans:
            plan.changes.append(DeleteNode(place.path))
        plan.changes.append(CreateNode(place.path))
        plan.made.append(place)
        return depth

    def _remove(self, plan: Plan, part: StepPart, state: RecordState) -> None:
        path, mark = part.key.path, partition_mark(part.key.path, part.key.partition)
        for index, key, depth in state.entries:
            place = _existing_entry(index, key, path, mark, depth)
            plan.changes.append(DeleteNode(place.path))
            plan.removed.append(place)
        self._end_chunks(plan, state)
        plan.changes.append(DeleteNode(part.node, state.node_version))
        plan.records[part.node] = None
        plan.before[part.node] = state

    def _end_chunks(self, plan: Plan, state: RecordState | None) -> None:
        if state is not None and state.chunks is not None:
            plan.changes.append(ended(state.chunks))
            plan.ended.append(state.chunks)

    def _end_private(self, plan: Plan) -> None:
        """
        Delete a transaction's own node with the last of its operations, as far as the cache shows which is the last.
        """
        gone: dict[str, set[str]] = {}
        for node, state in plan.records.items():
            parent = _parent(node)
            if is_private(parent):
                names = gone.setdefault(parent, set())
                if state is None:
                    names.add(node[len(parent) + 1 :])
        for parent, names in gone.items():
            alone = self._cache.private_children.get(parent)
            if alone is not None and alone and parent not in plan.parents and alone <= names:
                plan.private.append(parent)


def note_applied(
    cache: NodeCache, plan: Plan, missing: Sequence[str], zxid: int, note_empty: Callable[[str], None]
) -> None:
    """Update the cache after a multi; ``note_empty`` is called with nodes that may have lost their last child."""
    for node in missing:
        cache.parents.put(node, True)
        if is_private(node):
            cache.private_children.put(node, set())
    for node, state in plan.records.items():
        if state is None:
            cache.records.discard(node)
        else:
            cache.records.put(node, state if state.version else msgspec.structs.replace(state, version=zxid))
        _note_alone(cache, plan, node, state is None, note_empty)
    for place in plan.made:
        cache.add_to_entry_count(place.parent, 1)
    for place in plan.removed:
        cache.add_to_entry_count(place.parent, -1)
        note_empty(place.parent)
    for node in plan.private:
        cache.parents.discard(node)
        cache.private_children.discard(node)
        note_empty(_parent(node))


def _note_alone(cache: NodeCache, plan: Plan, node: str, is_gone: bool, note_empty: Callable[[str], None]) -> None:
    parent = _parent(node)
    alone = cache.private_children.get(parent) if is_private(parent) else None
    if alone is not None:
        (alone.discard if is_gone else alone.add)(node[len(parent) + 1 :])
    if is_gone and parent not in plan.private:
        note_empty(parent)


def _existing_entry(index: str, key: bytes, path: str, mark: str, depth: int) -> EntryLocation:
    place = entry_location(index, key, path, mark, depth)
    assert place is not None, "an existing entry has a node"
    return place


def _parent(node: str) -> str:
    return node[: node.rfind("/")]


__all__ = [
    "Entries",
    "Plan",
    "Planner",
    "RecordStates",
    "Step",
    "note_applied",
    "part_of",
    "require_expected",
    "sequential_part",
]  # fmt: skip
