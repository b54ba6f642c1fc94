"""
Paths and partitions of the records in the metadata store.

A path consists of ASCII components between slashes. Names are escaped to one component each, numbers have 20 digits,
transaction ids 32 hex digits. So paths sort like their numbers, and the range below one component contains no path
below another component. Topics, segments and subscriptions are given as the text form of their names.
"""

from __future__ import annotations

from txnframework.errors import CorruptRecord, InvalidName
from txnframework.model.ids import TxnID
from txnframework.model.metadata import Key, KeyRange
from txnframework.model.names import PERSISTENT, TOPIC, TopicName

_UNESCAPED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPES = {byte: f"%{byte:02X}" for byte in range(256) if byte not in _UNESCAPED}
_EMPTY = "%"
_DIGITS = 20
_NUMBER_LIMIT = 10**_DIGITS

_HEADER = "/txn"
_OPERATION = "/txn-op"
_ABORT_RECORD = "/txn-aborted"
_TRIMMED = "/txn-trimmed"
_APPLICATION = "/txn-app"
_SUBSCRIPTION = "/subscription"
_CURSOR = "/cursor"
_DELIVERIES = "/deliveries"
_COMPACTED = "/compacted"
_LEASE = "/lease"
_LAST = "\x7f"  # after every character of a component
_FIRST = "!"  # before every character of a component
# A persistent topic and a scalable one may share tenant, namespace and name, and must not share a record.
_TOPIC_ROOTS = {TOPIC: "/topic", PERSISTENT: "/persistent"}


# -- components ---------------------------------------------------------------------------------------


def escape(component: str) -> str:
    """
    Return ``component`` as one path component of ASCII without ``/``; different components have different results.

    The empty component becomes a lone ``%``. ``.`` and ``..`` are escaped as well, because stores with a tree of nodes
    refuse them. Raises ValueError if the component has no UTF-8 form.
    """
    if not component:
        return _EMPTY
    if component in (".", ".."):
        return component.replace(".", "%2E")
    # Latin-1 maps each byte to one character.
    return component.encode().decode("latin-1").translate(_ESCAPES)


def unescape(escaped: str) -> str:
    """Return the component that was escaped; ValueError if ``escaped`` is not exactly a result of ``escape``."""
    if escaped == _EMPTY:
        return ""
    first, *rest = escaped.encode("ascii").split(b"%")
    raw = first + b"".join(bytes.fromhex(piece[:2].decode()) + piece[2:] for piece in rest)
    component = raw.decode()
    if escape(component) != escaped:
        raise ValueError(f"{escaped!r} is not an escaped path component")
    return component


def number20(number: int) -> str:
    """Return ``number`` with 20 digits, so that text order is number order; ValueError below 0 or from 10**20."""
    if not 0 <= number < _NUMBER_LIMIT:
        raise ValueError(f"{number} does not fit {_DIGITS} digits")
    return f"{number:020d}"


# -- transactions -------------------------------------------------------------------------------------


def header_key(txn_id: TxnID) -> Key:
    """Return the key of a transaction's header."""
    text = str(txn_id)
    return Key(f"{_HEADER}/{text}", text)


def headers_range() -> KeyRange:
    """Return the range of all headers, in every partition."""
    return _below(_HEADER)


def operations_prefix(txn_id: TxnID) -> Key:
    """Return the prefix under which a transaction's operations are put, each as a PutSequential."""
    text = str(txn_id)
    return Key(f"{_OPERATION}/{text}", text)


def operations_range(txn_id: TxnID) -> KeyRange:
    """Return the range of a transaction's operation records, in the order of their numbers."""
    return _below(f"{_OPERATION}/{txn_id}", str(txn_id))


def all_operations_range() -> KeyRange:
    """Return the range of every transaction's operation records, in every partition; also those without a header."""
    return _below(_OPERATION)


def is_header(key: Key) -> bool:
    """Return whether a key is that of a transaction's header."""
    return key.path.startswith(f"{_HEADER}/")


def is_operation(key: Key) -> bool:
    """Return whether a key is that of an operation record of a transaction, or a prefix of such keys."""
    return key.path.startswith(f"{_OPERATION}/")


def txn_id_of(path: str) -> TxnID:
    """Return the transaction that a header, an operations prefix or an operation record belongs to, by its path."""
    root = _HEADER if path.startswith(f"{_HEADER}/") else _OPERATION
    text, *numbers = path.removeprefix(f"{root}/").split("/")
    if not path.startswith(f"{root}/") or len(numbers) > (root == _OPERATION):
        raise _not_a(path, "transaction")
    for number in numbers:
        _number_of(path, number)
    return _txn_id_of(path, text)


def operation_number_of(path: str) -> int:
    """Return the number that the store assigned to an operation record, by its path."""
    _, number = _components(path, _OPERATION, 2)
    return _number_of(path, number)


# -- abort records ------------------------------------------------------------------------------------


def abort_record_key(segment: str, ledger_id: int, txn_id: TxnID, branch: int) -> Key:
    """
    Return the key of the record that says that ``branch`` of a transaction is aborted in one ledger of ``segment``.
    """
    place = f"{escape(segment)}/{number20(ledger_id)}/{txn_id}/{number20(branch)}"
    return Key(f"{_ABORT_RECORD}/{place}", segment)


def abort_records_range(segment: str, from_ledger_id: int = 0, below_ledger_id: int | None = None) -> KeyRange:
    """
    Return the range of a segment's abort records, in ledger order, from one ledger on.

    ``below_ledger_id``: only records of ledgers before this one, such as trimmed ledgers.
    """
    whole = _below(f"{_ABORT_RECORD}/{escape(segment)}", segment)
    stop = whole.stop if below_ledger_id is None else whole.start + number20(below_ledger_id)
    return KeyRange(whole.start + number20(from_ledger_id), stop, segment)


def abort_record_of(path: str) -> tuple[str, int, TxnID, int]:
    """Return segment, ledger id, transaction and branch of an abort record, by its path."""
    segment, ledger_id, txn_id, branch = _components(path, _ABORT_RECORD, 4)
    return (
        _name_of(path, segment),
        _number_of(path, ledger_id),
        _txn_id_of(path, txn_id),
        _number_of(path, branch),
    )


def trimmed_key(segment: str) -> Key:
    """Return the key of the record that says which ledgers of ``segment`` were trimmed, and when."""
    return Key(f"{_TRIMMED}/{escape(segment)}", segment)


# -- applications, subscriptions, cursors, topics -----------------------------------------------------


def application_key(application_id: str) -> Key:
    """Return the key of an application's record."""
    return Key(f"{_APPLICATION}/{escape(application_id)}", application_id)


def applications_range() -> KeyRange:
    """Return the range of all application records."""
    return _below(_APPLICATION)


def application_of(path: str) -> str:
    """Return the application id of an application record, by its path."""
    (application_id,) = _components(path, _APPLICATION, 1)
    return _name_of(path, application_id)


def subscription_key(topic: str, name: str) -> Key:
    """Return the key of a subscription's record."""
    return Key(f"{_SUBSCRIPTION}/{escape(topic)}/{escape(name)}", topic)


def subscriptions_range(topic: str) -> KeyRange:
    """Return the range of a topic's subscription records."""
    return _below(f"{_SUBSCRIPTION}/{escape(topic)}", topic)


def subscription_of(path: str) -> tuple[str, str]:
    """Return topic and name of a subscription record, by its path."""
    topic, name = _components(path, _SUBSCRIPTION, 2)
    return _name_of(path, topic), _name_of(path, name)


def cursor_key(segment: str, subscription: str) -> Key:
    """Return the key of a subscription's cursor on one segment."""
    return Key(f"{_CURSOR}/{escape(segment)}/{escape(subscription)}", segment)


def cursors_range(segment: str) -> KeyRange:
    """Return the range of a segment's cursors."""
    return _below(f"{_CURSOR}/{escape(segment)}", segment)


def cursor_of(path: str) -> tuple[str, str]:
    """Return segment and subscription of a cursor, by its path."""
    segment, subscription = _components(path, _CURSOR, 2)
    return _name_of(path, segment), _name_of(path, subscription)


def delivery_counts_key(segment: str, subscription: str) -> Key:
    """Return the key of a subscription's delivery counts on one segment."""
    return Key(f"{_DELIVERIES}/{escape(segment)}/{escape(subscription)}", segment)


def compacted_key(segment: str) -> Key:
    """Return the key of a segment's compaction record."""
    return Key(f"{_COMPACTED}/{escape(segment)}", segment)


def compacted_ledgers_prefix(segment: str) -> str:
    """Return the prefix of the names of a segment's compacted ledgers; no topic can have such a name."""
    return f"compacted:{escape(segment)}/"


def compacted_ledger_name(segment: str, attempt: int, part: str = "") -> str:
    """
    Return the name of the ledger that an attempt to compact a segment writes; later attempts sort after it.

    ``part`` distinguishes several ledgers of one attempt.
    """
    name = compacted_ledgers_prefix(segment) + number20(attempt)
    return f"{name}/{part}" if part else name


def topic_key(topic: TopicName) -> Key:
    """Return the key of a topic's record."""
    place = f"{escape(topic.tenant)}/{escape(topic.namespace)}/{escape(topic.name)}"
    return Key(f"{_TOPIC_ROOTS[topic.domain]}/{place}", str(topic))


def topics_range(tenant: str | None = None, namespace: str | None = None, domain: str = TOPIC) -> KeyRange:
    """Return the range of the topics of one domain: all, a tenant's, or those of one of its namespaces."""
    if tenant is None and namespace is not None:
        raise ValueError(f"namespace {namespace!r} needs its tenant")
    names = [name for name in (tenant, namespace) if name is not None]
    return _below("/".join((_TOPIC_ROOTS[domain], *map(escape, names))))


def topic_of(path: str) -> TopicName:
    """Return the topic of a topic record, by its path."""
    for domain, root in _TOPIC_ROOTS.items():
        if path.startswith(f"{root}/"):
            tenant, namespace, name = (_name_of(path, part) for part in _components(path, root, 3))
            try:
                return TopicName(domain, tenant, namespace, name)
            except InvalidName as error:
                raise CorruptRecord(path, "its key", error.reason) from error
    raise _not_a(path, "topic")


# -- single records -----------------------------------------------------------------------------------


def ids_key(coordinator: int) -> Key:
    """Return the key of the record that reserves a coordinator's transaction ids in blocks."""
    return Key(f"/ids/{number20(coordinator)}")


def ids_range() -> KeyRange:
    """Return the range of the records that reserve transaction ids."""
    return _below("/ids")


def coordinator_of(path: str) -> int:
    """Return the coordinator whose ids a record reserves, by its path."""
    (number,) = _components(path, "/ids", 1)
    return _number_of(path, number)


def restore_key() -> Key:
    """Return the key of the record of the running restore, or of the last one."""
    return Key("/restore")


def copy_key() -> Key:
    """Return the key of the record, in the target, of the running copy of a deployment, or of the last one."""
    return Key("/copy")


def copied_key() -> Key:
    """Return the key of the record, in the source, of the last copy of the deployment."""
    return Key("/copied")


def family_of(path: str) -> str:
    """Return the first component of a path, with its slash; it names the kind of the record."""
    return path[: path.find("/", 1)] if "/" in path[1:] else path


def lease_key(name: str) -> Key:
    """Return the key of the lease called ``name``."""
    return Key(f"{_LEASE}/{escape(name)}")


def leases_range(prefix: str) -> KeyRange:
    """
    Return the range of the leases whose names begin with ``prefix``; with an empty prefix, of all leases.

    A lease's record exists while the lease is held.
    """
    path = f"{_LEASE}/{escape(prefix) if prefix else ''}"
    return KeyRange(path, f"{path}{_LAST}")


def lease_of(path: str) -> str:
    """Return the name of a lease, by its record's path."""
    (name,) = _components(path, _LEASE, 1)
    return _name_of(path, name)


def behind(key: Key, whole: KeyRange) -> KeyRange:
    """Return the part of a range that is behind ``key`` and behind every path below it."""
    return KeyRange(max(whole.start, f"{key.path}{_FIRST}"), whole.stop, whole.partition)


# -- parsing of paths ---------------------------------------------------------------------------------


def _below(path: str, partition: str | None = None) -> KeyRange:
    """Return the range of everything below ``path``; ``0`` is the character after ``/``."""
    return KeyRange(f"{path}/", f"{path}0", partition)


def _components(path: str, root: str, count: int) -> list[str]:
    """Return the components below ``root``, or raise CorruptRecord unless there are ``count``."""
    components = path.removeprefix(f"{root}/").split("/")
    if not path.startswith(f"{root}/") or len(components) != count:
        raise _not_a(path, root[1:])
    return components


def _name_of(path: str, component: str) -> str:
    """Return the name that ``component`` of ``path`` holds, or raise CorruptRecord."""
    try:
        return unescape(component)
    except ValueError as error:
        raise CorruptRecord(path, "its key", str(error)) from error


def _number_of(path: str, component: str) -> int:
    """Return the number that ``component`` of ``path`` holds, or raise CorruptRecord."""
    if len(component) != _DIGITS or component.strip("0123456789"):
        raise CorruptRecord(path, "its key", f"{component!r} is not a number of {_DIGITS} digits")
    return int(component)


def _txn_id_of(path: str, component: str) -> TxnID:
    """Return the transaction id that ``component`` of ``path`` holds, or raise CorruptRecord."""
    try:
        return TxnID.parse(component)
    except ValueError as error:
        raise CorruptRecord(path, "its key", str(error)) from error


def _not_a(path: str, kind: str) -> CorruptRecord:
    """Return the error for a path that is not that of a ``kind`` record."""
    return CorruptRecord(path, "its key", f"this is not the path of a {kind} record")
