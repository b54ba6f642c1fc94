"""IObserver: notified of the operations of a process, for metrics and traces."""

from __future__ import annotations

from zope.interface import Attribute, Interface, taggedValue

from txnframework.instruments import Instruments
from txnframework.model.observations import ObservedOperation, Outcome


class IObservation(Interface):
    """One operation that an observer follows until it ends."""

    taggedValue("plain_methods", True)

    headers: tuple[tuple[str, bytes], ...] = Attribute(
        "Headers for the messages that the operation sends. They are added unless a message has a header of that name,"
        " or would become too large."
    )

    def ends(outcome: Outcome) -> None:
        """Note the end of the operation; called once."""


class IObserver(Interface):
    """
    Observes the operations of a process: metrics count them, and traces make spans of them.

    The methods are plain functions that do no I/O. They are called in the event loop, in the context of the caller, and
    on the way of every message, so they take microseconds. Obligation: they raise nothing, and keep a bounded number of
    things however many operations never end.

    A send, a receipt and an acknowledgment are reported once for each call and topic. A receipt is reported when the
    messages are there, without the wait for them. Operations on transactions are reported once for each attempt; those
    of a sweep, which any process may do, are not reported. A transaction may be refused as one step of the store, and
    take the usual steps instead. It is reported with the usual steps, and the reports of the one step are superseded.
    If it has rows of the application, the same work may follow later instead, which is reported then.
    """

    taggedValue("plain_methods", True)

    instruments: Instruments | None = Attribute(
        "Where the process records further numbers, such as decisions by result; None: nowhere."
    )

    def begins(operation: ObservedOperation) -> IObservation:
        """Note the begin of an operation."""
