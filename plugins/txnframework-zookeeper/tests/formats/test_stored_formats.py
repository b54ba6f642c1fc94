"""The stored format of nodes: this release reads earlier formats, and changes bytes only in a higher version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from kazoo.protocol.states import ZnodeStat

from txnframework.model import Key, Record
from txnframework.model.paths import lease_key
from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written
from txnframework_zookeeper import _leases, _root
from txnframework_zookeeper._leases import LeaseDocument, decode_lease
from txnframework_zookeeper.connection._requests import Node
from txnframework_zookeeper.tree import _records
from txnframework_zookeeper.tree._index import entry_location
from txnframework_zookeeper.tree._layout import liveness_node, node_of, partition_mark
from txnframework_zookeeper.tree._records import Chunks, RecordState, decode_node, encode_node, home_of

SAMPLES = Path(__file__).parent / "samples"
STAT = ZnodeStat(5, 9, 0, 0, 3, 0, 0, 0, 0, 0, 0)
NUMBER, ID = f"{7:020d}", "00030000000000000000000000000077"
KEY = Key(f"/txn-op/{ID}/{NUMBER}", ID)
HASHED = Key("/a/b", "p")
ENTRIES = (("txn-by-deadline", b"\x30\x06\x01\x8b\xcf\xe5h\x00", 1),)
CHUNKS = Chunks("/chunks/a/b/t", 2, 200_000)
LEASE = LeaseDocument(holder="host-1", session="s-1")


def node(data: bytes) -> Node:
    """Return a node with this data."""
    return Node(data, STAT)


def with_first(replacement: Callable[[int, list[Any]], Any]) -> Callable[[bytes, int], bytes]:
    """Return how a JSON list, before the first end of a line, gets another version."""

    def change(data: bytes, version: int) -> bytes:
        head, end, value = data.partition(b"\n")
        found = msgspec.json.decode(head)
        return data if found[0] == version else msgspec.json.encode(replacement(version, found)) + end + value

    return change


with_same_fields = with_first(lambda version, found: [version, *found[1:]])
with_other_fields = with_first(lambda version, found: [version, {"other": "fields"}])


def record(name: str, key: Key, state: RecordState, value: bytes, unknown: int, change: Any) -> StoredSample:
    """Return the sample of a record's node."""
    mark = partition_mark(key.path, key.partition)
    return StoredSample(
        f"{name}.bin",
        _records.FORMAT if state.chunks is None else _records.FORMAT_WITH_CHUNKS,
        (Record(key, value, STAT.mzxid), state),
        lambda: encode_node(value, key.partition, state.entries, state.token, state.chunks),
        lambda data: decode_node(key.path, mark, node(data)),
        refused_as=f"record {key.path}",
        with_version=change,
        unknown=unknown,
    )


def state(chunks: Chunks | None = None) -> RecordState:
    """Return what is known of a record."""
    return RecordState(STAT.mzxid, STAT.version, ENTRIES, "5d0c1be7a9f2.1c", chunks)


def places() -> dict[str, Any]:
    """Return the paths of nodes, by what they hold."""
    location = entry_location(*ENTRIES[0][:2], KEY.path, partition_mark(KEY.path, KEY.partition), 1)
    assert location is not None
    return {
        "store": _root.STORE,
        "counter": (_root.COUNTER, _root.INITIAL_COUNTER.decode()),
        "record": node_of(KEY),
        "record with a hash": node_of(HASHED),
        "record with unusual text": node_of(Key("/topic/caf\u00e9 \x01/A_B")),
        "index entry": location.path,
        "chunks": home_of(HASHED),
        "lease": node_of(lease_key("transactions/3")),
        "liveness": liveness_node("t"),
        "states of chunks": [_records.STAGED.decode(), _records.NAMED.decode(), _records.OVER.decode()],
    }


SAMPLED = [
    record("record", HASHED, state(), b"a\nvalue", 3, with_same_fields),
    record("record_with_a_number", KEY, state(), b"", 3, with_other_fields),
    record("record_in_chunks", HASHED, state(CHUNKS), b"", 3, with_same_fields),
    StoredSample(
        "counter.json",
        _root.COUNTER_FORMAT,
        (7_000, STAT.version),
        lambda: msgspec.json.encode((_root.COUNTER_FORMAT, 7_000)),
        lambda data: _root._decode_counter(node(data)),
        refused_as=_root.COUNTER,
        with_version=with_other_fields,
    ),
    StoredSample(
        "store.json",
        _root.STORE_FORMAT,
        "store-a",
        lambda: msgspec.json.encode(_root._Store(_root.STORE_FORMAT, "store-a")),
        lambda data: _root._decode_store(node(data)).identity,
        refused_as="the store",
    ),
    StoredSample(
        "lease.json",
        _leases.FORMAT,
        LEASE,
        lambda: msgspec.json.encode(LEASE),
        lambda data: decode_lease("transactions/3", Record(lease_key("transactions/3"), data, 1)),
        refused_as="lease transactions/3",
        # A later release may have other fields.
        with_version=lambda data, version: (
            data if version == _leases.FORMAT else msgspec.json.encode({"format": version, "by": 3})
        ),
    ),
    StoredSample(
        "places.json",
        1,
        msgspec.json.decode(msgspec.json.encode(places())),
        lambda: msgspec.json.format(msgspec.json.encode(places())),
        msgspec.json.decode,
    ),
]


def test_written() -> None:
    """This release writes the bytes of the files, or a version that has no file yet."""
    check_written(SAMPLES, SAMPLED)


def test_read() -> None:
    """This release reads the files, and finds what was written."""
    check_read(SAMPLES, SAMPLED)


def test_later_versions() -> None:
    """An unknown version is refused by name, and each version check has a sample."""
    check_refused(SAMPLED, "txnframework_zookeeper")
