"""
Every public exception: one class for each case that a caller can branch on, with the details as attributes.

The families, by the caller's next step:

* ``InvalidInput``: invalid usage by a person; report it and stop.
* ``Conflict``: the state forbids the call; read again, then decide.
* ``NotFound``: the object does not exist.
* ``Unavailable``: trying again may help.
* ``OutcomeUnknown``: the operation may or may not have been applied; read before trying again.
* ``Closed``: this object was closed; open another.
* ``Corrupt``: stored data cannot be read; never skipped silently.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.values import Key, Position, State, TxnID


class TxnFrameworkError(Exception):
    """The root of all exceptions that this framework raises deliberately."""


_EXCERPT_CHARACTERS = 100


def excerpt(given: object) -> str:
    """Return a value in a form that a sentence can quote: its beginning, with control characters escaped."""
    if isinstance(given, int) and given.bit_length() > 4 * _EXCERPT_CHARACTERS:
        return f"a number of {given.bit_length()} bits"  # Python refuses to write longer ones in digits
    if isinstance(given, str | bytes) and len(given) > _EXCERPT_CHARACTERS:
        return f"{ascii_safe(repr(given[:_EXCERPT_CHARACTERS]))}..."
    if isinstance(given, str | bytes | int | float | None):
        return ascii_safe(repr(given))
    return f"a {type(given).__name__}"


def ascii_safe(text: str) -> str:
    """Return text that every output accepts: lone surrogates, which have no UTF-8 form, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


# -- invalid usage ------------------------------------------------------------------------------------


class InvalidInput(TxnFrameworkError):
    """Input by a person that cannot be used; its text is one sentence that says what to do."""


class ConfigurationError(InvalidInput):
    """The configuration is wrong at ``path`` (such as ``domains.segment.buffer``)."""

    def __init__(self, path: str, reason: str, file: str | None = None) -> None:
        self.path = path
        self.reason = reason
        self.file = file
        where = f"{file}: {path}" if file and path else file or path
        super().__init__(f"{where}: {reason}" if where else reason)


class InvalidName(InvalidInput):
    """``name`` is not the name of a topic or segment; ``reason`` says why."""

    def __init__(self, name: object, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{excerpt(name)} is not a topic name: {reason}")


class MissingExtra(InvalidInput):
    """``what`` needs a package that is not installed; the extra ``extra`` installs it."""

    def __init__(self, what: str, extra: str, package: str) -> None:
        self.what = what
        self.extra = extra
        self.package = package
        super().__init__(f'{what} needs {package}: pip install "txnframework[{extra}]"')


class PluginError(InvalidInput):
    """A plugin could not be used; ``distribution`` and ``version`` are the plugin's, if known."""

    def __init__(self, message: str, distribution: str | None = None, version: str | None = None) -> None:
        self.distribution = distribution
        self.version = version
        super().__init__(message)


class UnknownPlugin(PluginError):
    """No installed plugin provides ``name`` for ``role``; the distribution ``brought_by`` does, if known."""

    def __init__(
        self, role: str, name: str, known: Iterable[str], hint: str = "", brought_by: str | None = None
    ) -> None:
        self.role = role
        self.name = name
        self.known = tuple(sorted(known))
        self.brought_by = brought_by
        installed = ", ".join(self.known) or "none"
        super().__init__(f"no {role} named {name!r} is installed (installed: {installed}){hint}")


class WithoutTransactions(PluginError):
    """
    ``segment`` contains operations of a transaction whose outcome is unknown here; ``reason`` says what is missing.
    """

    def __init__(self, segment: str, what: str, reason: str) -> None:
        self.segment = segment
        self.reason = reason
        super().__init__(f"{what} cannot be judged here: {segment} is served without transactions, because {reason}")


class PluginContractError(PluginError):
    """A plugin's object does not keep the contract of its role; ``method`` says where."""

    def __init__(
        self, distribution: str | None, version: str | None, role: str, method: str | None, reason: str
    ) -> None:
        self.role = role
        self.method = method
        whose = f"{distribution} {version}" if distribution else "an object"
        where = f"{role}.{method}" if method else role
        super().__init__(f"{whose} does not keep the contract of {where}: {reason}", distribution, version)


# -- conflicts with the present state -----------------------------------------------------------------


class Conflict(TxnFrameworkError):
    """The present state forbids the call; nothing was changed."""


class VersionMismatch(Conflict):
    """The record at ``key`` does not have the expected version; nothing was changed."""

    def __init__(self, key: Key, actual: int | None) -> None:
        self.key = key
        self.actual = actual
        found = "is absent" if actual is None else f"has version {actual}"
        super().__init__(f"record {key.path} {found}, which was not expected")


class TransactionConflict(Conflict):
    """``txn_id`` cannot do this: it has ended, or it conflicts with another transaction (``other``)."""

    def __init__(self, txn_id: TxnID | None, reason: str, other: TxnID | None = None) -> None:
        self.txn_id = txn_id
        self.reason = reason
        self.other = other
        super().__init__(f"transaction {txn_id}: {reason}" if txn_id else reason)


class InvalidTransactionState(Conflict):
    """``txn_id`` has already ended, as ``actual``, or with other branches than requested."""

    def __init__(self, txn_id: TxnID, actual: State, reason: str) -> None:
        self.txn_id = txn_id
        self.actual = actual
        super().__init__(f"transaction {txn_id} is {actual.value}: {reason}")


class NotTransactionOwner(Conflict):
    """``principal`` may not end or add to ``txn_id``; nothing was changed."""

    def __init__(self, txn_id: TxnID, principal: str) -> None:
        self.txn_id = txn_id
        self.principal = principal
        super().__init__(f"transaction {txn_id} does not belong to principal {principal!r}")


class TransactionHasFailedOperations(Conflict):
    """A send or acknowledgment in ``txn_id`` failed, so the transaction was aborted instead of committed."""

    def __init__(self, txn_id: TxnID) -> None:
        self.txn_id = txn_id
        super().__init__(f"transaction {txn_id} was aborted: a send or acknowledgment in it had failed")


class TransactionDomainMismatch(Conflict):
    """The transaction's family does not serve the topic; ``reason``: which one does, or what is missing."""

    def __init__(self, txn_id: TxnID, family: str, topic: str, reason: str = "") -> None:
        self.txn_id = txn_id
        self.family = family
        self.topic = topic
        self.reason = reason
        why = f": {reason}" if reason else ""
        super().__init__(f"transaction {txn_id} belongs to the {family} family, which does not serve {topic}{why}")


class Fenced(Conflict):
    """A newer run or owner has taken over; this one must stop. ``what`` was taken, by ``holder`` if known."""

    def __init__(self, what: str, holder: str = "") -> None:
        self.what = what
        self.holder = holder
        super().__init__(f"{what} was taken over by {holder or 'a newer run'}; this one must stop")


class LeaseHeld(Conflict):
    """Another session holds the lease; ``key`` can be watched for its end."""

    def __init__(self, name: str, holder: str, key: Key) -> None:
        self.name = name
        self.holder = holder
        self.key = key
        super().__init__(f"lease {name} is held by {holder}")


class SubscriptionOwnedElsewhere(Conflict):
    """Another process dispatches this subscription; ``holder`` names it."""

    def __init__(self, segment: str, subscription: str, holder: str) -> None:
        self.segment = segment
        self.subscription = subscription
        self.holder = holder
        super().__init__(
            f"subscription {subscription} of {segment} is dispatched by {holder}, and by one process at a time:"
            " try again when that one has closed, or some seconds after it died"
        )


class ConsumerBusy(Conflict):
    """The subscription allows only one consumer and has one: ``consumer``."""

    def __init__(self, subscription: str, consumer: str) -> None:
        self.subscription = subscription
        self.consumer = consumer
        super().__init__(f"subscription {subscription} already has its one consumer, {consumer}")


class TopicExists(Conflict):
    """The topic already exists."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic} already exists")


class TopicInUse(Conflict):
    """The topic was not deleted: ``reason`` says what still uses it."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"topic {topic} is in use: {reason}; delete it by force to end that")


class LayoutConflict(Conflict):
    """The segment layout of ``topic`` does not allow this split or merge."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic}: {reason}")


class CommitOrderUnknown(Conflict):
    """Messages of ``segment`` cannot be sorted by commit time; ``reason`` says which information is missing."""

    def __init__(self, segment: str, reason: str) -> None:
        self.segment = segment
        self.reason = reason
        super().__init__(
            f"the order of commits in {segment} is not known any more: {reason}; use the order of positions"
        )


class CompactedInOtherOrder(Conflict):
    """
    ``segment`` was compacted in the order of commits, and the messages that were left out have been trimmed since.
    """

    def __init__(self, segment: str) -> None:
        self.segment = segment
        super().__init__(
            f"{segment} cannot be compacted in the order of positions: it was compacted in the order of commits, and"
            " its first messages were trimmed since"
        )


class LedgerClosed(Conflict):
    """``ledger_id`` of ``name`` is no longer the open one; nothing was appended."""

    def __init__(self, name: str, ledger_id: int) -> None:
        self.name = name
        self.ledger_id = ledger_id
        super().__init__(f"ledger {ledger_id} of {name} is closed")


class LedgerSealed(Conflict):
    """``name`` is sealed permanently; nothing was appended."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name} is sealed permanently; send to its topic, which routes to its successors")


class StoreMismatch(Conflict):
    """Metadata store and ledger do not belong together, or one of them was restored from a backup."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(self.sentence(reason))

    def sentence(self, reason: str) -> str:
        """Return the message."""
        return f"metadata store and ledger do not belong together: {reason}"


class DeploymentClosed(StoreMismatch):
    """The deployment was copied to other stores, or is being copied, and was closed by that."""

    def sentence(self, reason: str) -> str:
        """Return the message."""
        return reason


# -- missing objects ----------------------------------------------------------------------------------


class NotFound(TxnFrameworkError):
    """The named object does not exist."""


class TransactionNotFound(NotFound):
    """``txn_id`` never began, or ended longer ago than its outcome is kept."""

    def __init__(self, txn_id: TxnID) -> None:
        self.txn_id = txn_id
        super().__init__(
            f"transaction {txn_id} is not known: it never began, or ended longer ago than its outcome is kept"
        )


class TopicNotFound(NotFound):
    """The topic does not exist; ``deleted``: it existed before."""

    def __init__(self, topic: str, *, deleted: bool = False) -> None:
        self.topic = topic
        self.deleted = deleted
        super().__init__(f"topic {topic} {'was deleted' if deleted else 'does not exist; create it first'}")


class SubscriptionNotFound(NotFound):
    """The subscription does not exist."""

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        super().__init__(f"topic {topic} has no subscription {subscription}")


class LedgerNotFound(NotFound):
    """No managed ledger has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"ledger {name} does not exist")


class EntryTrimmed(NotFound):
    """The entry at ``position`` existed and was trimmed; ``first`` is the first entry that is left, if any."""

    def __init__(self, name: str, position: Position, first: Position | None = None) -> None:
        self.name = name
        self.position = position
        self.first = first
        super().__init__(f"entry {position} of {name} was trimmed")


# -- failures after which a retry may help ------------------------------------------------------------


class Unavailable(TxnFrameworkError):
    """The operation could not be done now, and nothing was changed; trying again may help."""


class ReceiveTimeout(Unavailable):
    """No message became visible in time."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        super().__init__(f"no message within {timeout_ms} ms")


class EndTransactionTimeout(Unavailable):
    """Not every participant was reached in time; the decision is final, and its outcome can be read."""

    def __init__(self, txn_id: TxnID, timeout_ms: int) -> None:
        self.txn_id = txn_id
        self.timeout_ms = timeout_ms
        super().__init__(f"transaction {txn_id} did not end at every participant within {timeout_ms} ms")


class OutcomeUnknown(TxnFrameworkError):
    """The operation may or may not have been applied; read before trying again."""


class LeaseLost(TxnFrameworkError):
    """The lease is lost, and the holder may no longer act under it."""

    def __init__(self, name: str, advice: str = "") -> None:
        self.name = name
        super().__init__(f"the lease {name!r} was lost" + (f"; {advice}" if advice else ""))


class Closed(TxnFrameworkError):
    """This object was closed; open another."""


# -- unreadable data ----------------------------------------------------------------------------------


class Corrupt(TxnFrameworkError):
    """Stored data does not have its expected form."""


class CorruptEntry(Corrupt):
    """The entry at ``position`` of ``segment``, as far as both are known, is damaged."""

    def __init__(self, position: Position | None, reason: str, segment: str = "") -> None:
        self.position = position
        self.reason = reason
        self.segment = segment
        super().__init__(f"{entry_named(position, segment)} is damaged: {reason}")


def entry_named(position: Position | None, segment: str = "") -> str:
    """Return an entry's name for a sentence, as far as it is known."""
    return ("an entry" if position is None else f"entry {position}") + (f" of {segment}" if segment else "")


class CorruptRecord(Corrupt):
    """The record at ``key`` is damaged at ``field``."""

    def __init__(self, key: str, field: str, reason: str) -> None:
        self.key = key
        self.field = field
        self.reason = reason
        super().__init__(f"record {key} is damaged at {field}: {reason}")


class UndecodableMessage(Corrupt):
    """
    The content of the message at ``position`` of ``segment`` cannot be decoded; ``schema_id`` is the message's, if any.

    Neither the error nor its cause contains the value. The message can be acknowledged, or redelivered until it becomes
    a dead letter.
    """

    def __init__(self, topic: str, segment: str, position: Position, schema_id: str | None, reason: str) -> None:
        self.topic = topic
        self.segment = segment
        self.position = position
        self.schema_id = schema_id
        self.reason = reason
        schema = "without a schema id" if schema_id is None else f"with the schema id {excerpt(schema_id)}"
        super().__init__(f"the message at {position} of {segment}, {schema}, cannot be decoded: {reason}")


class UnknownFormat(Corrupt):
    """``what`` was written in format ``version``, which this release does not know; upgrade before reading."""

    def __init__(self, what: str, version: object) -> None:
        self.what = what
        self.version = version
        super().__init__(
            f"{what} has format version {version}, which this release does not know; open it with the one that wrote it"
        )
