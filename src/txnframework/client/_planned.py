"""Operations of a transaction that are planned before it begins; ``Client.transact`` performs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from txnframework.client._messages import MessageID
from txnframework.client._sends.message_checks import PreparedMessages
from txnframework.client._transaction import TransactionPart
from txnframework.errors import InvalidInput

if TYPE_CHECKING:
    from txnframework.broker import Host
    from txnframework.client._sends.sends import ProducerSends
    from txnframework.client._subscription.acknowledgments import Acked, ConsumerAcks


Ack = Callable[[tuple["Acked", ...], TransactionPart], Awaitable[None]]
"""Acknowledges messages in a transaction, as ``Consumer.ack`` does."""


class PlannedOperation(ABC):
    """Base class of what ``Client.transact`` takes; each object is used once."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.is_used = False

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Return the topics or segments that the operation needs."""

    @abstractmethod
    def require_open(self) -> None:
        """Raise Closed if the producer or consumer was closed."""


class PlannedSend(PlannedOperation):
    """A message that ``Client.transact`` sends; returned by ``Producer.outgoing``."""

    def __init__(self, host: Host, producer: object, sends: ProducerSends[Any], message: PreparedMessages) -> None:
        super().__init__(host)
        self.sends = sends
        self.message = message
        self._producer = producer

    def __repr__(self) -> str:
        return f"<PlannedSend by {self._producer!r}>"

    @property
    def has_chosen_sequence(self) -> bool:
        """Whether the caller chose the sequence id."""
        return self.message.common.sequence_id is not None

    def names(self) -> tuple[str, ...]:
        """Return the topic of the producer, as it is named now."""
        return (str(self.sends.current_topic),)

    def require_open(self) -> None:
        """Raise Closed if the producer was closed."""
        self.sends.require_open()


class PlannedAck(PlannedOperation):
    """Acknowledgments that ``Client.transact`` makes; returned by ``Consumer.acknowledging``."""

    def __init__(self, host: Host, acks: ConsumerAcks, messages: tuple[Acked, ...], ack: Ack) -> None:
        super().__init__(host)
        self.acks = acks
        self.messages = messages
        self._ack = ack

    def __repr__(self) -> str:
        return f"<PlannedAck of {len(self.messages)} messages>"

    def names(self) -> tuple[str, ...]:
        """Return the topics of the messages, as the consumer knows them now."""
        segments = {one.segment if isinstance(one, MessageID) else one.id.segment: None for one in self.messages}
        return tuple(dict.fromkeys(map(self.acks.topic_of, segments)))

    def require_open(self) -> None:
        """Raise Closed if the consumer was closed."""
        self.acks.require_open()

    async def perform(self, txn: TransactionPart) -> None:
        """Acknowledge the messages."""
        await self._ack(self.messages, txn)


def by_producer(planned: Iterable[PlannedSend]) -> dict[ProducerSends[Any], list[PlannedSend]]:
    """Return the messages of each producer, in order."""
    found: dict[ProducerSends[Any], list[PlannedSend]] = {}
    for one in planned:
        found.setdefault(one.sends, []).append(one)
    return found


def take_planned(host: Host, operations: Iterable[object]) -> tuple[PlannedOperation, ...]:
    """
    Check the operations of one call, and mark them as used.

    :raises InvalidInput: there are none, one is something else, is used already, or belongs to other stores.
    :raises Closed: a producer or consumer was closed.
    """
    found: dict[PlannedOperation, None] = {}
    for one in operations:
        if not isinstance(one, PlannedOperation):
            raise InvalidInput(
                "transact takes what producer.outgoing() and consumer.acknowledging() return, not a "
                f"{type(one).__name__}"
            )
        if one.is_used or one in found:
            raise InvalidInput(f"{one!r} is used already; plan the operation again for each use")
        if one.host.metadata.identity != host.metadata.identity:
            raise InvalidInput(
                f"{one!r} belongs to a client of other stores; one transaction cannot cover two deployments"
            )
        one.require_open()
        found[one] = None
    if not found:
        raise InvalidInput("transact needs at least one operation")
    for one in found:
        one.is_used = True
    return tuple(found)
