"""IDispatcher: who gets which message of one subscription."""

from __future__ import annotations

from zope.interface import Attribute, Interface, taggedValue

from txnframework.model.dispatching import Assignment, Candidate, ConsumerInfo, Ordering
from txnframework.model.positions import Position


class IDispatcher(Interface):
    """
    A decision, no I/O: the broker reads, waits for announcements and delivers; this only assigns.

    So its methods are plain functions. They wait for nothing, and the broker calls them one at a time.

    There is one dispatcher for each segment and subscription that a process dispatches. How it is used: consumers
    attach and grant permits; the broker offers what waits, in reading order, and delivers as assigned; what is
    acknowledged or given back is released.

    What a type promises is declared by ``ordering`` and ``stands_by``. They are attributes of the class, because
    clients and brokers decide by them before a dispatcher is opened, and they are the same in every process. A client
    follows splits and merges in order, and acknowledges cumulatively, as far as ``ordering`` allows.

    Obligations.

    * *Outstanding* is what was assigned and not released, whether its consumer is still there or not. Nothing
      outstanding is offered, so nothing is ever assigned twice at a time.
    * A consumer is assigned as many messages as it has permits and no more; each assignment takes one permit, and
      releasing gives none back.
    * Order. Of the messages that a type keeps in order, a call assigns only a first part of those that are offered:
      where one cannot be assigned now, none that follows it is. What was given back is offered before what stands
      behind it, so a consumer that asks for redelivery sees the order again from there.
    * What a type keeps in order goes to one consumer at a time: nothing of it to another one while something of it is
      outstanding at the former, even if that one has left.
    * Progress. While nothing is outstanding and every attached consumer has permits, the first message that is offered
      is assigned.
    * Memory is bounded by the consumers that are attached and by what is outstanding.

    The standard types. A dispatcher that names one of them as its ``subscription_type`` does what is said here; any
    other type has a name of its own.

    * ``exclusive``: everything in order; one consumer, another one is refused.
    * ``failover``: everything in order; any number of consumers, one of them active and the others standing by: the
      active one alone is assigned messages, until it leaves. Then the one with the lowest priority number follows,
      among those the one that attached first. Whoever attaches later never interrupts the active one, whatever its
      priority.
    * ``shared``: no order; in turn, among the consumers with the lowest priority number that have permits.
    * ``key_shared``: each key in order; a key without outstanding messages goes to any consumer with permits, and as a
      rule to the same one as before; a message whose key is None is of no key and goes to any. An empty key is a key.
      Priorities do not count.
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
        Add a consumer, with the permits that it brings; one that is there already stays as it is.

        :raises ConsumerBusy: the type allows one only, and names the one that is there; nothing changed. Never where
            consumers stand by.
        """

    def detach(consumer_id: int) -> frozenset[Position]:
        """
        Remove a consumer; return what it held; an unknown one holds nothing.

        What it held is outstanding until it is released: the broker does so once it waits again or is done, so that
        nothing behind it in order overtakes it.
        """

    def permit(consumer_id: int, messages: int) -> None:
        """Let it take that many more; one that has left takes nothing."""

    def assign(waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """
        Assign in reading order as far as permits and ordering allow; what is not assigned is offered again.

        ``waiting`` begins with the first message that waits, and leaves none out before its last one.
        """

    def released(positions: frozenset[Position]) -> None:
        """These were acknowledged or given back, outstanding or not; whatever they blocked is free."""
