from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from txnframework.errors import CorruptRecord
from txnframework.model import paths
from txnframework.model.ids import TxnID
from txnframework.model.metadata import Key, KeyRange
from txnframework.model.names import TopicName

TXN = TxnID(1, 0xAB)
TXN_TEXT = "000100000000000000000000000000ab"
SEGMENT = "segment://public/default/ratings/0000-ffff-0"
SEGMENT_PART = "segment%3A%2F%2Fpublic%2Fdefault%2Fratings%2F0000-ffff-0"
TOPIC = "topic://public/default/ratings"
TOPIC_PART = "topic%3A%2F%2Fpublic%2Fdefault%2Fratings"
ODD_NAMES = ("", ".", "..", "a", "a/b", "sub", "sub-2", "%", "%25", "~", ":", "é", " ", "\x00", "0", "A")


def holds(where: KeyRange, key: Key) -> bool:
    """Return whether a store would find this key in the range."""
    in_order = where.start.encode() <= key.path.encode() < where.stop.encode()
    return in_order and where.partition in (None, key.partition)


# -- components ---------------------------------------------------------------------------------------


def test_escaping_is_injective_and_gives_plain_components() -> None:
    """Exhaustive over short words of a difficult alphabet: round trip, ASCII, no slash, never empty or a dot name."""
    alphabet = (".", "/", "%", "2", "5", "F", "f", "~", " ", "\x00", "é")
    words = ["".join(word) for length in range(4) for word in product(alphabet, repeat=length)]
    escaped = {paths.escape(word) for word in words}
    assert len(escaped) == len(words)
    for word in words:
        component = paths.escape(word)
        assert paths.unescape(component) == word
        assert component.isascii()
        assert component.isprintable()
        assert "/" not in component
        assert component not in ("", ".", "..")


def test_every_character_escapes_to_its_utf8() -> None:
    """Every byte value, and characters of each UTF-8 length, round-trip."""
    for character in [chr(code) for code in range(0x800)] + ["\u2028", "\ufffd", "\U0001f6b2", "\U0010ffff"]:
        assert paths.unescape(paths.escape(character)) == character
    assert paths.escape("a/b é%") == "a%2Fb%20%C3%A9%25"
    assert paths.escape("") == "%"
    assert paths.escape("..") == "%2E%2E"
    assert paths.escape("a.b") == "a.b"


@pytest.mark.parametrize(
    "text", ["", "a/b", "%2", "%2f", "%61", "%%", "a%", "% 1", "%zz", "é", ".", "%FF", "a b", "%2Ea"]
)
def test_one_component_has_one_spelling(text: str) -> None:
    """What ``escape`` does not return is refused, so two paths never mean one name."""
    with pytest.raises(ValueError, match=r"escaped|codec|hex"):
        paths.unescape(text)


def test_numbers_sort_as_text() -> None:
    """20 digits hold every unsigned 64-bit number."""
    numbers = [0, 1, 9, 10, 99, 2**31, 2**63, 2**64 - 1, 10**20 - 1]
    texts = [paths.number20(number) for number in numbers]
    assert texts == sorted(texts)
    assert {len(text) for text in texts} == {20}
    for number in (-1, 10**20):
        with pytest.raises(ValueError, match="20 digits"):
            paths.number20(number)


# -- keys ---------------------------------------------------------------------------------------------

GOLDEN = [
    (paths.header_key(TXN), f"/txn/{TXN_TEXT}", TXN_TEXT),
    (paths.operations_prefix(TXN), f"/txn-op/{TXN_TEXT}", TXN_TEXT),
    (
        paths.abort_record_key(SEGMENT, 7, TXN, 2**64 - 1),
        f"/txn-aborted/{SEGMENT_PART}/00000000000000000007/{TXN_TEXT}/18446744073709551615",
        SEGMENT,
    ),
    (paths.application_key("my app"), "/txn-app/my%20app", "my app"),
    (paths.subscription_key(TOPIC, "sub"), f"/subscription/{TOPIC_PART}/sub", TOPIC),
    (paths.cursor_key(SEGMENT, "sub"), f"/cursor/{SEGMENT_PART}/sub", SEGMENT),
    (paths.delivery_counts_key(SEGMENT, "sub"), f"/deliveries/{SEGMENT_PART}/sub", SEGMENT),
    (paths.trimmed_key(SEGMENT), f"/txn-trimmed/{SEGMENT_PART}", SEGMENT),
    (paths.compacted_key(SEGMENT), f"/compacted/{SEGMENT_PART}", SEGMENT),
    (paths.topic_key(TopicName.parse(TOPIC)), "/topic/public/default/ratings", TOPIC),
    (
        paths.topic_key(TopicName.parse("persistent://public/default/ratings")),
        "/persistent/public/default/ratings",
        "persistent://public/default/ratings",
    ),
    (paths.ids_key(3), "/ids/00000000000000000003", ""),
    (paths.lease_key("sweep/deadline"), "/lease/sweep%2Fdeadline", ""),
]


@pytest.mark.parametrize(("key", "path", "partition"), GOLDEN, ids=[path for _, path, _ in GOLDEN])
def test_records_stand_where_they_always_did(key: Key, path: str, partition: str) -> None:
    """Paths and partitions are part of the stored format: golden."""
    assert key == Key(path, partition)


def test_paths_give_back_what_they_were_made_of() -> None:
    """Each inverse agrees with its key, for names that look like anything."""
    operation = f"{paths.operations_prefix(TXN).path}/{paths.number20(12)}"
    assert paths.txn_id_of(paths.header_key(TXN).path) == TXN
    assert paths.txn_id_of(paths.operations_prefix(TXN).path) == TXN
    assert paths.txn_id_of(operation) == TXN
    assert paths.operation_number_of(operation) == 12
    for first, second in product(ODD_NAMES, repeat=2):
        assert paths.subscription_of(paths.subscription_key(first, second).path) == (first, second)
        assert paths.cursor_of(paths.cursor_key(first, second).path) == (first, second)
    for name in ODD_NAMES:
        assert paths.application_of(paths.application_key(name).path) == name
        record = paths.abort_record_key(name, 5, TXN, 9)
        assert paths.abort_record_of(record.path) == (name, 5, TXN, 9)
    for domain, name in product(("topic", "persistent"), ("a", "..", "é %", "0000")):
        topic = TopicName(domain, "t", "n", name)
        assert paths.topic_of(paths.topic_key(topic).path) == topic


BAD_PATHS: list[tuple[Callable[[str], Any], str]] = [
    (paths.txn_id_of, "/txn"),
    (paths.txn_id_of, "/txn/"),
    (paths.txn_id_of, f"txn/{TXN_TEXT}"),
    (paths.txn_id_of, f"/txn/{TXN_TEXT}/00000000000000000001"),
    (paths.txn_id_of, f"/txn/{TXN_TEXT.upper()}"),
    (paths.txn_id_of, f"/txn-aborted/{TXN_TEXT}"),
    (paths.txn_id_of, f"/txn-op/{TXN_TEXT}/1"),
    (paths.txn_id_of, f"/txn-op/{TXN_TEXT}/00000000000000000001/00000000000000000001"),
    (paths.operation_number_of, f"/txn-op/{TXN_TEXT}"),
    (paths.operation_number_of, f"/txn-op/{TXN_TEXT}/-0000000000000000001"),
    (paths.operation_number_of, f"/txn-op/{TXN_TEXT}/0000000000000000000\u0663"),
    (paths.abort_record_of, f"/txn-aborted/s/00000000000000000001/{TXN_TEXT}"),
    (paths.abort_record_of, f"/txn-aborted/s/00000000000000000001/{TXN_TEXT[1:]}/00000000000000000001"),
    (paths.abort_record_of, f"/txn-aborted/%2f/00000000000000000001/{TXN_TEXT}/00000000000000000001"),
    (paths.cursor_of, "/cursor/a"),
    (paths.cursor_of, "/subscription/a/b"),
    (paths.subscription_of, "/subscription/a/b/c"),
    (paths.application_of, "/txn-app/"),
    (paths.topic_of, "/topic/a/b"),
    (paths.topic_of, "/topic/a/b/%0A"),
    (paths.topic_of, "/topics/a/b/c"),
]


@pytest.mark.parametrize(("inverse", "path"), BAD_PATHS, ids=[path for _, path in BAD_PATHS])
def test_a_path_that_was_not_made_here_is_refused(inverse: Callable[[str], Any], path: str) -> None:
    """The error names the record's key."""
    with pytest.raises(CorruptRecord) as caught:
        inverse(path)
    assert caught.value.key == path


# -- ranges -------------------------------------------------------------------------------------------


def test_ranges_of_names_hold_exactly_their_records() -> None:
    """A range of a name excludes records of longer names with that prefix."""
    for first in ODD_NAMES:
        for other, name in product(ODD_NAMES, repeat=2):
            assert holds(paths.cursors_range(first), paths.cursor_key(other, name)) == (first == other)
            assert holds(paths.subscriptions_range(first), paths.subscription_key(other, name)) == (first == other)
        assert not holds(paths.cursors_range(first), paths.subscription_key(first, "sub"))


def test_ranges_of_transactions_hold_exactly_their_records() -> None:
    """One transaction's operations are found in one partition; headers and operations never mix."""
    ids = [TxnID(0, 0), TxnID(0, 1), TxnID(0, 16), TxnID(1, 0), TxnID(0xFFFF, 2**112 - 1)]
    operations = {
        (txn_id, number): Key(f"{paths.operations_prefix(txn_id).path}/{paths.number20(number)}", str(txn_id))
        for txn_id, number in product(ids, (0, 9, 10, 10**20 - 1))
    }
    for txn_id in ids:
        found = [owner for (owner, _), key in operations.items() if holds(paths.operations_range(txn_id), key)]
        assert found == [txn_id] * 4
        assert not holds(paths.operations_range(txn_id), paths.header_key(txn_id))
        assert holds(paths.headers_range(), paths.header_key(txn_id))
        assert not holds(paths.all_operations_range(), paths.header_key(txn_id))
    assert all(holds(paths.all_operations_range(), key) for key in operations.values())
    assert not any(holds(paths.headers_range(), key) for key in operations.values())
    assert not holds(paths.headers_range(), paths.application_key("a"))


def test_abort_records_are_scanned_from_a_ledger_on() -> None:
    """A reader scans from its first ledger; the collector stops at the first remaining ledger."""
    ledgers = (0, 1, 9, 10, 11, 2**63)
    keys = {ledger: paths.abort_record_key(SEGMENT, ledger, TXN, 0) for ledger in ledgers}
    keys[-1] = paths.abort_record_key(SEGMENT + "1", 10, TXN, 0)
    for first in (0, 1, 2, 10, 2**63):
        where = paths.abort_records_range(SEGMENT, first)
        assert [ledger for ledger, key in keys.items() if holds(where, key)] == [n for n in ledgers if n >= first]
        below = paths.abort_records_range(SEGMENT, 0, first)
        assert [ledger for ledger, key in keys.items() if holds(below, key)] == [n for n in ledgers if n < first]
        assert where.partition == SEGMENT


def test_topics_are_listed_by_domain_tenant_and_namespace() -> None:
    """Each listing has exactly its own topics, over all partitions."""
    names = [
        TopicName(domain, tenant, namespace, "n")
        for domain, tenant, namespace in product(("topic", "persistent"), ("a", "a-b", "ab"), ("x", "xy", "0"))
    ]
    for domain, tenant, namespace in product(("topic", "persistent"), (None, "a"), (None, "x")):
        if tenant is None and namespace is not None:
            with pytest.raises(ValueError, match="tenant"):
                paths.topics_range(tenant, namespace, domain)
            continue
        where = paths.topics_range(tenant, namespace, domain)
        expected = [
            name
            for name in names
            if name.domain == domain and tenant in (None, name.tenant) and namespace in (None, name.namespace)
        ]
        assert [name for name in names if holds(where, paths.topic_key(name))] == expected
        assert where.partition is None
