"""IDispatcher: who gets which message of one subscription."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.model.dispatching import Assignment, Candidate, ConsumerInfo
from txnframework.model.positions import Position


class IDispatcher(Interface):
    """
    A decision, no I/O: the broker reads, waits for announcements and delivers; this only assigns.

    There is one for each segment and subscription that a process dispatches. How it is used: consumers attach and grant
    permits; the broker offers what waits, in reading order, and delivers as assigned; what is acknowledged or given
    back is released.

    Obligations.

    * *Outstanding* is what was assigned and not released, whether its consumer is still there or not. Nothing
      outstanding is offered, so nothing is ever assigned twice at a time.
    * A consumer is assigned as many messages as it has permits and no more; each assignment takes one permit, and
      releasing gives none back.
    * Order. Of the messages that a type keeps in order (``exclusive`` and ``failover``: all of them; ``key_shared``:
      those of one key; ``shared``: none) a call assigns only a first part of those that are offered: where one cannot
      be assigned now, none that follows it is. What was given back is offered before what stands behind it, so a
      consumer that asks for redelivery sees the order again from there.
    * What a type keeps in order goes to one consumer at a time: nothing of it to another one while something of it is
      outstanding at the former, even if that one has left.
    * Memory is bounded by the consumers that are attached and by what is outstanding.

    The types.

    * ``exclusive``: one consumer; another one is refused.
    * ``failover``: any number of consumers, one of them active: it alone is assigned messages, until it leaves. Then
      the one with the lowest priority number follows, among those the one that attached first. Whoever attaches later
      never interrupts the active one, whatever its priority.
    * ``shared``: in turn, among the consumers with the lowest priority number that have permits.
    * ``key_shared``: a key without outstanding messages goes to any consumer with permits, and as a rule to the same
      one as before; a message whose key is None is of no key and goes to any. An empty key is a key. Priorities do not
      count.
    """

    subscription_type: str = Attribute("'exclusive', 'failover', 'shared', 'key_shared'.")

    async def attach(consumer: ConsumerInfo) -> None:
        """
        Add a consumer, with the permits that it brings; one that is there already stays as it is.

        :raises ConsumerBusy: the type allows one only, and names the one that is there; nothing changed.
        """

    async def detach(consumer_id: int) -> frozenset[Position]:
        """
        Remove a consumer; return what it held; an unknown one holds nothing.

        What it held is outstanding until it is released: the broker does so once it waits again or is done, so that
        nothing behind it in order overtakes it.
        """

    async def permit(consumer_id: int, messages: int) -> None:
        """Let it take that many more; one that has left takes nothing."""

    async def assign(waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """
        Assign in reading order as far as permits and ordering allow; what is not assigned is offered again.

        ``waiting`` begins with the first message that waits, and leaves none out before its last one.
        """

    async def released(positions: frozenset[Position]) -> None:
        """These were acknowledged or given back, outstanding or not; whatever they blocked is free."""
