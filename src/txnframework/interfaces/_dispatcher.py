"""IDispatcher: the assignment of one subscription's messages to consumers."""

from __future__ import annotations

from zope.interface import Attribute, Interface, taggedValue

from txnframework.model.dispatch import Assignment, Candidate, ConsumerInfo, Ordering
from txnframework.model.positions import Position


class IDispatcher(Interface):
    """
    Assigns messages to consumers without I/O: the broker reads, waits for announcements and delivers.

    So its methods are plain functions. They wait for nothing, and the broker calls them one at a time.

    There is one dispatcher for each segment and subscription that a process dispatches. How it is used: consumers
    attach and grant permits. The broker offers the waiting messages, in reading order, and delivers them as assigned.
    Messages that are acknowledged or given back are released.

    A type declares its promises by ``ordering`` and ``stands_by``. They are attributes of the class, and the same in
    every process, because clients and brokers decide by them before a dispatcher is opened. A client follows splits and
    merges in order, and acknowledges cumulatively, as far as ``ordering`` allows.

    Obligations.

    * *Outstanding* messages are those that were assigned and not released, whether their consumers are still attached
      or not. Outstanding messages are not offered, so no message is ever assigned twice at a time.
    * A consumer is assigned as many messages as it has permits and no more. Each assignment takes one permit, and a
      release returns none.
    * Order. A type that keeps messages in order assigns them in that order: if one message cannot be assigned now, the
      call assigns none of the following messages. Messages that were given back are offered before those
      behind them. So a consumer that asks for redelivery receives the messages in order again from there.
    * Messages that a type keeps in order go to one consumer at a time. While one of them is outstanding at a consumer,
      none is assigned to another one, even if the first consumer has left.
    * Progress. While nothing is outstanding and every attached consumer has permits, the first message that is offered
      is assigned.
    * Memory is bounded by the attached consumers and the outstanding messages.

    The standard types. A dispatcher that has one of these names as its ``subscription_type`` behaves as described here.
    Any other type has a name of its own.

    * ``exclusive``: everything in order; one consumer, and another one is refused.
    * ``failover``: everything in order; any number of consumers, one of them active and the others standing by. Only
      the active consumer is assigned messages, until it leaves. Then the consumer with the lowest priority number
      becomes active; among several, the one that attached first. A consumer that attaches later never interrupts the
      active one, whatever its priority.
    * ``shared``: no order; in turn, among the consumers with the lowest priority number that have permits.
    * ``key_shared``: each key in order. A key without outstanding messages goes to any consumer with permits, as a rule
      to the same one as before. A message whose key is None has no key and goes to any consumer. An empty key is a key.
      Priorities are ignored.
    """

    taggedValue("plain_methods", True)
    taggedValue("class_attributes", {"subscription_type": str, "ordering": Ordering, "stands_by": bool})

    subscription_type: str = Attribute("A standard type, or the name of another one.")
    ordering: Ordering = Attribute("Which of a segment's messages are kept in order.")
    stands_by: bool = Attribute(
        "Whether a consumer whose turn has not come waits for it, unless its program says otherwise. Here any number "
        "may attach; elsewhere they wait until the process that dispatches has left. False: such a consumer is refused."
    )

    def attach(consumer: ConsumerInfo) -> None:
        """
        Add a consumer with the permits that it brings; a consumer that is already attached is unchanged.

        :raises ConsumerBusy: the type allows only one consumer. The error names the attached one. Nothing was changed.
            Never raised by a type whose consumers stand by.
        """

    def detach(consumer_id: int) -> frozenset[Position]:
        """
        Remove a consumer; return the messages that it held; an unknown consumer holds none.

        These messages are outstanding until they are released. The broker releases them when they wait again or are
        done, so that no message behind them in order overtakes them.
        """

    def permit(consumer_id: int, messages: int) -> None:
        """Let a consumer take that many more messages; a consumer that has left takes none."""

    def assign(waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """
        Assign messages in reading order, as far as permits and ordering allow; the others are offered again.

        ``waiting`` begins with the first waiting message, and omits none before its last one.
        """

    def released(positions: frozenset[Position]) -> None:
        """Accept that messages were acknowledged or given back, outstanding or not; they block no others any more."""


class ISingleActiveDispatcher(IDispatcher):
    """A dispatcher that assigns messages to one of the attached consumers only, and says which one it is."""

    taggedValue("plain_methods", True)

    active: int | None = Attribute(
        "The id of the consumer that gets the messages; None: no consumer is attached. Changes only in ``attach`` and "
        "``detach``."
    )
