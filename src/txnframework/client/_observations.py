"""Reports of a client's sends, receipts and acknowledgments to the observer of its host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import Context
from typing import Any, Final

from txnframework.broker import observing
from txnframework.client._messages import Message, MessageID
from txnframework.client._sends.batches import size_of
from txnframework.client._sends.encoded_values import HeaderPairs
from txnframework.client._sends.message_checks import SharedFields
from txnframework.client._transaction import TransactionPart
from txnframework.errors import InvalidInput
from txnframework.interfaces import IObservation, IObserver
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import Branch, TxnID
from txnframework.model.names import topic_of
from txnframework.model.observations import SUCCEEDED, ObservedOperation, OperationKind

_UNOBSERVED: Final[AbstractContextManager[None]] = nullcontext()


def observed_send(
    observer: IObserver,
    topic: str,
    values: Sequence[bytes | None],
    branch: Branch | None,
    context: Context | None,
) -> AbstractContextManager[IObservation]:
    """Report one call that sends ``values``, in a context or (None) in the present one."""
    size = sum(len(value) for value in values if value is not None)
    txn_id = None if branch is None else branch.txn_id
    operation = ObservedOperation(OperationKind.SEND, topic, txn_id=txn_id, messages=len(values), value_bytes=size)
    return observing(observer, operation, context)


def with_added_headers(
    observation: IObservation, common: SharedFields, tagged: Sequence[HeaderPairs] | None, bytes_left: int
) -> tuple[SharedFields, Sequence[HeaderPairs] | None]:
    """
    Return the fields that messages share and the headers of each, with the headers that the observer adds.

    A header that the caller has given is kept. None are added if a message would become too large: ``bytes_left`` is
    by how many bytes the largest one may grow.
    """
    if not observation.headers:
        return common, tagged
    names = {name for name, _ in common.headers}
    added = tuple(header for header in observation.headers if header[0] not in names)
    size = size_of(EntryMessage(None, None, added, 0, 0)) - size_of(EntryMessage(None, None, (), 0, 0))
    if size > bytes_left:
        return common, tagged
    return (
        SharedFields(common.key, common.headers + added, common.sequence_id),
        None if tagged is None else tuple([(*one, *added) for one in tagged]),
    )


def note_received(observer: IObserver | None, subscription: str, messages: Sequence[Message[Any]]) -> None:
    """Report messages that a consumer is about to return."""
    if observer is None:
        return
    for topic, some in _by_topic(messages).items():
        headers = tuple(one.headers for one in some if isinstance(one, Message) and one.headers)
        size = sum(len(one.value) for one in some if isinstance(one, Message) and one.value is not None)
        operation = ObservedOperation(
            OperationKind.RECEIVE, topic, subscription, messages=len(some), value_bytes=size, headers=headers
        )
        observer.begins(operation).ends(SUCCEEDED)


def observed_acks(
    observer: IObserver | None,
    subscription: str,
    messages: Sequence[Message[Any] | MessageID],
    txn: TransactionPart | None,
) -> AbstractContextManager[object]:
    """Report one call that acknowledges ``messages``."""
    if observer is None:
        return _UNOBSERVED
    return acks_in(observer, subscription, messages, _id_of(txn))


def _id_of(txn: object) -> TxnID | None:
    """Return a transaction's id; None if it has not begun, or is none, which the call that is reported refuses."""
    try:
        return txn.id if isinstance(txn, TransactionPart) else None
    except InvalidInput:
        return None


@contextmanager
def acks_in(
    observer: IObserver, subscription: str, messages: Sequence[Message[Any] | MessageID], txn_id: TxnID | None
) -> Iterator[None]:
    """Report acknowledgments in a transaction."""
    with ExitStack() as stack:
        for topic, some in _by_topic(messages).items():
            headers: tuple[Mapping[str, bytes], ...] = tuple(
                one.headers for one in some if isinstance(one, Message) and one.headers
            )
            operation = ObservedOperation(
                OperationKind.ACK, topic, subscription, txn_id, messages=len(some), headers=headers
            )
            stack.enter_context(observing(observer, operation))
        yield


def _by_topic(messages: Iterable[object]) -> dict[str, list[Message[Any] | MessageID]]:
    """Return messages by topic; what is no message is left out, and refused by the call that is reported."""
    found: dict[str, list[Message[Any] | MessageID]] = {}
    for one in messages:
        if isinstance(one, Message):
            found.setdefault(one.topic, []).append(one)
        elif isinstance(one, MessageID):
            found.setdefault(str(topic_of(one.segment)), []).append(one)
    return found
