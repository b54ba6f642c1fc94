"""Nodes of keys and of index entries: distinct, decodable, ordered, and never too many below one parent."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import reduce

import pytest

from txnframework.errors import InvalidInput
from txnframework.model import IndexRange, Key, KeyRange, index_keys, paths
from txnframework.model.ids import TxnID
from txnframework_zookeeper.tree import _index, _layout, _ranges

# What ZooKeeper refuses in a path.
REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
LISTING_BYTES_MAX = 1_048_575
SEGMENT = "segment://public/default/orders/0000-ffff-0"
ALPHABET = "abz019-._%~AZ !$#+:=,é漢\x00\x01\U0001f600\uffff"


def random_paths(seed: int, count: int) -> list[str]:
    """Paths of components that are alike, so that one often begins as another does."""
    source = random.Random(seed)
    fixed = ["", ".", "..", "txn", "txn-op", "%", f"{7:020d}", f"{7:032x}", f"{1 << 70:032x}", "0" * 20]
    found = set()
    while len(found) < count:
        components = [
            source.choice(fixed)
            if source.random() < 0.4
            else "".join(source.choice(ALPHABET) for _ in range(source.randrange(9)))
            for _ in range(source.randrange(1, 5))
        ]
        found.add("/" + "/".join(components))
    return sorted(found)


def require_allowed(node: str) -> None:
    """Fail unless ZooKeeper takes the path."""
    assert not REFUSED.search(node)
    assert all(name not in ("", ".", "..") for name in node[1:].split("/"))


def children(nodes: Iterable[str]) -> dict[str, set[str]]:
    """Which names stand below which node."""
    found: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        while node.count("/") > 1:
            parent, _, name = node.rpartition("/")
            found[parent].add(name)
            node = parent
    return found


def listing_bytes(names: Iterable[str]) -> int:
    """How large the answer of a server is that lists them."""
    return sum(4 + len(name) for name in names)


@pytest.mark.parametrize("seed", range(5))
def test_a_name_says_what_stands_there(seed: int) -> None:
    """Each key has its own valid node, and the names down to it encode its path and partition."""
    source = random.Random(seed)
    nodes = set()
    for path in random_paths(seed, 500):
        for partition in {"", path, path.split("/")[-1], "elsewhere", f"é{source.random()}"}:
            key = Key(path, partition)
            node = _layout.node_of(key)
            require_allowed(node)
            names = node.removeprefix(f"{_layout.RECORDS}/").split("/")
            found = reduce(_layout.open_record_child, names, _layout.RecordTreeNode("/", None, _layout.RECORDS))
            assert (found.text, found.node) == (path, node)
            assert found.mark is not None
            assert _layout.partition_of(path, found.mark, partition) == ("" if partition == path else partition)
            nodes.add((path, partition or path, node))
    assert len({node for _, _, node in nodes}) == len({(path, partition) for path, partition, _ in nodes})


def test_every_key_below_a_node_begins_with_its_text() -> None:
    """A search that opens the lowest node first finds the keys in order."""
    for path in random_paths(9, 500):
        place = _layout.RecordTreeNode("/", None, _layout.RECORDS)
        for name in _layout.node_of(Key(path)).removeprefix(f"{_layout.RECORDS}/").split("/"):
            place = _layout.open_record_child(place, name)
            assert path.startswith(place.text)


@pytest.mark.parametrize("seed", range(3))
def test_a_range_lies_below_its_start(seed: int) -> None:
    """For any range, all of its keys are below the node where the search begins."""
    source = random.Random(seed)
    keys = random_paths(seed, 300)
    ranges = [KeyRange(*sorted(source.sample(keys, 2))) for _ in range(200)]
    ranges += [KeyRange(f"{key}/", f"{key}0") for key in keys[::5]]
    ranges += [KeyRange(key, f"{key}\x7f") for key in keys[::5]]
    for asked in ranges:
        start = _layout.record_range_start(asked)
        for key in keys:
            if asked.start <= key < asked.stop:
                assert _layout.node_of(Key(key)).startswith(f"{start.node}/")
                assert key.startswith(start.text)


def test_a_transactions_operations_are_found_without_a_search() -> None:
    """The search for the operations of a transaction begins at its own node."""
    txn_id = TxnID.parse(f"{1_200_000:032x}")
    operation = Key(f"{paths.operations_prefix(txn_id).path}/{5:020d}", str(txn_id))
    start = _layout.record_range_start(paths.operations_range(txn_id))
    assert _layout.node_of(operation).rpartition("/")[0] == start.node
    assert _layout.is_private(start.node)


def test_a_key_without_a_node_is_refused() -> None:
    """A path without a slash, or without a UTF-8 form, has no node."""
    with pytest.raises(InvalidInput, match="begins with a slash"):
        _layout.node_of(Key("a"))
    with pytest.raises(InvalidInput, match="UTF-8"):
        _layout.node_of(Key("/\ud800"))


COUNT = 30_000
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
source_of_families = random.Random(1)
# Keys as the framework makes them, and as another plugin might.
FAMILIES: dict[str, Callable[[int], str]] = {
    "headers": lambda number: f"/txn/{number:032x}",
    "headers of many coordinators": lambda number: f"/txn/{number << 100 | number:032x}",
    "random ids": lambda _: f"/txn/{source_of_families.getrandbits(128):032x}",
    "operations": lambda number: f"/txn-op/{number // 3:032x}/{number:020d}",
    "operations of one": lambda number: f"/txn-op/{7:032x}/{10**19 + number:020d}",
    "topics": lambda number: f"/topic/public/default/orders-of-customer-{number}",
    "cursors": lambda number: f"/cursor/segment%3A%2F%2Fpublic%2Fdefault%2Ft{number}%2F0000-ffff-0/s",
    "numbers": lambda number: f"/other/{number:020d}",
    "random numbers": lambda _: f"/other/{source_of_families.randrange(10**20):020d}",
    "words": lambda _: "/w/" + "".join(source_of_families.choices(LETTERS, k=12)),
    "short words": lambda _: "/" + "".join(source_of_families.choices(f"{LETTERS}ABCDEF", k=4)),
    "unicode": lambda _: "/u/" + "".join(chr(source_of_families.randrange(0xA0, 0xD7FF)) for _ in range(3)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_node_has_many_children(family: str) -> None:
    """For any number of keys of a kind, the list of a node's children stays far below a client's limit."""
    found = children(_layout.node_of(Key(FAMILIES[family](number))) for number in range(COUNT))
    assert max(map(listing_bytes, found.values())) < LISTING_BYTES_MAX / 2


def test_the_most_pieces_that_can_stand_below_a_node() -> None:
    """Every text of five characters from each kind of characters gives few different first pieces."""
    usual, less, unusual = len(_layout._USUAL), len(_layout._LESS_USUAL), 256
    pieces = usual**3 + usual**2 + 2 * usual * less + less**2 + 2 * usual * unusual + unusual + usual + less
    assert pieces < 90_000
    for text in ("abcdefg", "ABCDEFG", "aBcDeF", "abC", "äöü", "abä", "aäb", "%2Fab"):
        assert "".join(_layout.pieces(text)) == text
        for piece in _layout.pieces(text):
            assert sum(map(_layout._weight, piece)) <= _layout._WEIGHT_MAX


# -- indexes ------------------------------------------------------------------------------------------


def random_index_keys(seed: int, count: int) -> list[bytes]:
    """Keys of components as the framework makes them, and such bytes as another plugin might take."""
    source = random.Random(seed)

    def component() -> str | int | bytes:
        kinds: list[str | int | bytes] = [
            "", SEGMENT, f"{source.randrange(9):032x}", "sub", "sub-2", "a\x00b", "é", "a/b", "a$;#:",
            0, source.randrange(300), 1_763_774_857_123 + source.randrange(10_000), 2**64 + 1, b"", b"\x00\x01\xff",
        ]  # fmt: skip
        return source.choice(kinds)

    found = {index_keys.encode(*(component() for _ in range(source.randrange(4)))) for _ in range(count)}
    found |= {source.randbytes(source.randrange(6)) for _ in range(count // 4)}
    found |= {key[: source.randrange(len(key) + 1)] for key in list(found)[::7]}
    return sorted(found)


PLACES = [Key("/a"), Key("/a", "p"), Key("/a-b"), Key("/a/b"), Key(f"/txn/{7:032x}", f"{7:032x}"),
          Key(f"/txn-op/{7:032x}/{5:020d}", f"{7:032x}"), Key("/sub")]  # fmt: skip


@pytest.mark.parametrize("depth", range(4))
def test_the_name_of_an_entry_says_key_and_record(depth: int) -> None:
    """At any depth, the names down to an entry encode prefixes of its key and its record."""
    nodes = set()
    count = 0
    for index_key in random_index_keys(3, 300):
        for key in PLACES:
            mark = _layout.partition_mark(key.path, key.partition)
            place = _index.entry_location("an index", index_key, key.path, mark, depth)
            if place is None:
                continue
            require_allowed(place.path)
            root = _index.index_range_start(IndexRange("an index", b"", b"\xff"))
            found = root
            for name in place.path.removeprefix(f"{root.node}/").split("/"):
                found = _index.open_entry_child(found, name)
                assert index_key.hex().startswith(found.digits)
                assert key.path.startswith(found.path)
                assert not found.path or found.digits == index_key.hex()
            assert (found.digits, found.path, found.mark) == (index_key.hex(), key.path, mark)
            nodes.add(place.path)
            count += 1
    assert len(nodes) == count > 0


def test_an_index_range_lies_below_its_start() -> None:
    """For any range of an index, all of its entries are below the node where the search begins."""
    source = random.Random(5)
    keys = random_index_keys(4, 200)
    ranges = [IndexRange("i", *sorted(source.sample(keys, 2))) for _ in range(200)]
    ranges += [index_keys.prefix_range("i", SEGMENT), index_keys.prefix_range("i", SEGMENT, "sub")]
    ranges += [IndexRange("i", key, key + b"\xff") for key in keys[::3]]
    for asked in ranges:
        start = _index.index_range_start(asked)
        for key in keys:
            if asked.start <= key < asked.stop:
                for depth in range(3):
                    place = _index.entry_location("i", key, PLACES[5].path, "1", depth)
                    if place is not None:
                        assert place.path.startswith(f"{start.node}/")
                        assert key.hex().startswith(start.digits)


def test_entries_of_one_time_share_a_node_of_four_seconds() -> None:
    """A time index is divided by time, so that few nodes are created and old ones become empty together."""
    ids = [f"{number:032x}" for number in range(200)]
    now = 1_763_774_857_000 // 4096 * 4096
    for key_of in (lambda at, one: index_keys.encode(at, one), lambda at, one: index_keys.encode("ABORTED", at, one)):
        entries = [
            _index.entry_location("by-time", key_of(now + number * 40, one), f"/txn/{one}", "1", 0)
            for number, one in enumerate(ids)
        ]
        assert len({place.parent for place in entries if place}) == 2


def leads_to(watched: _ranges.TreeRange, node: str) -> bool:
    """Whether a watch of a range comes to a node, opening only what concerns it."""
    place = watched.start
    assert node.startswith(f"{place.node}/")
    for name in node.removeprefix(f"{place.node}/").split("/"):
        place = watched.open_child(place, name)
        if not watched.contains(place):
            return False
    return True


def test_watching_a_range_sees_what_is_in_it() -> None:
    """The watched nodes lead to each record or entry in the range, and to no others."""
    one = Key(f"/txn-op/{7:032x}/{5:020d}", f"{7:032x}")
    operations = _ranges.tree_range(paths.operations_range(TxnID.parse(f"{7:032x}")))
    assert leads_to(operations, _layout.node_of(one))
    assert not leads_to(operations, _layout.node_of(Key(one.path)))
    key = index_keys.encode(SEGMENT, f"{7:032x}")
    entry = _index.entry_location("writes-by-segment", key, one.path, "1", 0)
    assert entry is not None
    assert leads_to(_ranges.tree_range(index_keys.prefix_range("writes-by-segment", SEGMENT)), entry.path)
    assert leads_to(_ranges.tree_range(IndexRange("writes-by-segment", b"", b"\xff")), entry.path)
    assert not leads_to(_ranges.tree_range(IndexRange("writes-by-segment", key + b"\0", b"\xff")), entry.path)
