"""
Messages that are being acknowledged, and those that open transactions hold: pure state, without I/O.

``Deliveries`` contains the messages. This module changes their states while acknowledgments are recorded, and after
each refresh from the stores.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.broker.dispatch.deliveries import DETACHED, Deliveries, HeldMessage, MessageState
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.model.acks import Ack, AckState
from txnframework.model.cursor import Cursor, changes_since, state_of
from txnframework.model.ids import Branch
from txnframework.model.positions import Position


class AckProgress:
    """
    The acknowledgments of one dispatch's messages.

    A message is *own* if the consumer that received it acknowledged it. Messages that others finished are remembered as
    claims of the consumers that had received them.
    """

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self.messages = deliveries.messages
        self.claims = deliveries.claims
        self._refreshes = 0

    # -- facts ----------------------------------------------------------------------------------------

    def is_held(self, position: Position) -> bool:
        """Return whether an acknowledgment of a message is in progress or pending."""
        held = self.messages.get(position)
        return held is not None and held.state in (MessageState.ACKING, MessageState.PENDING_ACK)

    def is_being_acknowledged(self, position: Position) -> bool:
        """Return whether an acknowledgment of a message is in progress, so its result is not known yet."""
        held = self.messages.get(position)
        return held is not None and held.state is MessageState.ACKING

    def is_pending(self, position: Position) -> bool:
        """Return whether a transaction held a message at the last refresh or later."""
        held = self.messages.get(position)
        return held is not None and held.state is MessageState.PENDING_ACK

    def pending(self, positions: Iterable[Position]) -> list[HeldMessage]:
        """Return those of the messages that a transaction held at the last refresh or later."""
        return [self.messages[position] for position in positions if self.is_pending(position)]

    def upto(self, position: Position) -> tuple[Position, ...]:
        """Return the positions that a cumulative acknowledgment of ``position`` covers, in order."""
        return tuple(sorted(one for one in self.messages if one <= position))

    def claimed(self, consumer: int, upto: Position) -> list[HeldMessage]:
        """
        Return the messages up to here that a consumer received and is not known to have finished itself, in order.

        Together with the messages in ``claims``, a cumulative acknowledgment of the consumer covers these.
        """
        given = (one for one in self.messages.values() if one.given_to == consumer and one.position <= upto)
        return sorted((one for one in given if not self._is_own(one)), key=lambda one: one.position)

    def left_behind(self, consumer: int) -> dict[Position, Branch | None]:
        """
        Return the messages that a consumer received and did not finish, which others may finish after a lost lease.

        Each has the branch in which the consumer acknowledged it, or None.
        """
        found = self.claims.left_by(consumer)
        for one in self.messages.values():
            if one.given_to == consumer:
                found[one.position] = one.holder if one.own else None
        return found

    def undecided(self, consumer: int, upto: Position) -> set[Branch]:
        """Return the branches with an unknown outcome in which a consumer acknowledged messages up to here."""
        found = {one.holder for one in self.claimed(consumer, upto) if one.own and one.holder is not None}
        return {one for one in found if self.claims.counts(one) is None} | self.claims.undecided(consumer, upto)

    # -- events ---------------------------------------------------------------------------------------

    def begin_ack(
        self, positions: Iterable[Position], holder: Branch | None, cumulative: bool, consumer: int | None = None
    ) -> list[HeldMessage]:
        """
        Mark messages as being acknowledged, and return them; those with another acknowledgment are not changed.

        ``consumer`` acknowledges them; None means the one that each message was given to.
        """
        begun = []
        for position in positions:
            held = self.messages.get(position)
            if held is not None and held.state not in (MessageState.ACKING, MessageState.PENDING_ACK):
                held.cumulative, held.skipped_by_refresh = cumulative, False
                held.own = consumer is None or held.given_to == consumer
                self._deliveries.set_state(held, MessageState.ACKING, holder)
                begun.append(held)
        return begun

    def undo_ack(self, begun: Iterable[HeldMessage]) -> bool:
        """
        Restore messages after a refused acknowledgment; return whether some of them need a refresh.

        Messages that a refresh skipped may be finished, or held by another transaction that relies on this being
        noticed. They stay pending until the next refresh.
        """
        unsure = False
        for held in begun:
            if self.messages.get(held.position) is held and held.state is MessageState.ACKING:
                held.own = False
                if held.skipped_by_refresh:
                    unsure = True
                    self._pend(held)
                else:
                    self._deliveries.set_state(
                        held, MessageState.WAITING if held.consumer is None else MessageState.DELIVERED
                    )
        return unsure

    def pend(self, begun: Iterable[HeldMessage]) -> None:
        """Mark messages as pending after an acknowledgment that was, or may have been, recorded."""
        for held in begun:
            if self.messages.get(held.position) is held and held.state is MessageState.ACKING:
                self._pend(held)

    def take_over(
        self, held: Iterable[HeldMessage], holder: Branch, *, cumulative: bool, consumer: int | None = None
    ) -> None:
        """
        Mark messages as held by ``holder``, after their previous transaction was aborted.

        A refresh that saw the abort, but began before the new acknowledgment was recorded, may have freed the messages
        or be about to.
        """
        for one in held:
            if self._is_own(one):
                continue  # skipped: the previous transaction counts, and the next refresh finds it finished
            if self.messages.get(one.position) is one and one.state is not MessageState.ACKING:
                one.since, one.cumulative = self._refreshes, cumulative
                one.own = consumer is None or one.given_to == consumer
                self._deliveries.set_state(one, MessageState.PENDING_ACK, holder)

    def finished_outside(self, done: Iterable[HeldMessage]) -> None:
        """Note, for messages that were given to another consumer, that they were acknowledged outside transactions."""
        for held in done:
            if not (held.own and held.state is MessageState.ACKING):
                self._claim(held)

    def held_by(self, branch: Branch, acks: Iterable[Ack]) -> tuple[list[HeldMessage], bool]:
        """
        Return the messages that a commit of ``branch`` finishes, by its individual acknowledgments, and whether these
        are all.

        They are pending in it, or being acknowledged in its only step. Messages that are not held here do not matter.
        """
        found = [held for ack in acks for at in _messages_of(ack) if (held := self.messages.get(at)) is not None]
        states = (MessageState.PENDING_ACK, MessageState.ACKING)
        pending = [one for one in found if one.state in states and one.holder == branch]
        return pending, len(pending) == len(found)

    def finished_in(self, branch: Branch, done: Iterable[HeldMessage]) -> None:
        """Note, for messages that another consumer acknowledged in ``branch``, that this branch was committed."""
        for held in done:
            if not (held.own and held.holder == branch):
                self._claim(held)

    def begin_refresh(self) -> int:
        """Begin a refresh, and return its number for ``reconcile``."""
        self._refreshes += 1
        return self._refreshes

    def reconcile(
        self, cursor: Cursor, pending: OpenAcks, refresh: int, before: Cursor | None = None
    ) -> frozenset[Position]:
        """
        Update the messages from a refresh; return the positions that are free again or finished.

        ``before``: the cursor of the last refresh, with which messages have been read since. Then only messages whose
        states may differ are looked at: a backlog may have many others in its holes.

        Messages of an aborted transaction wait again, with a higher redelivery count. Those of an aborted cumulative
        acknowledgment stay with their consumer, which may request their redelivery.
        """
        freed: set[Position] = set()
        for held in self._deliveries.concerned_by([*changes_since(cursor, before), *pending.ranges()]):
            position, state = held.position, held.state
            if state is MessageState.ACKING:
                held.skipped_by_refresh = True
                continue
            if state_of(cursor, position) is AckState.DELETED:
                self._claim(held)
                freed |= self._deliveries.forget((held,))
                continue
            holder = pending.holder(position)
            if holder is not None:
                held.cumulative = holder.ack.cumulative
                held.own = held.own and held.holder == holder.branch
                self._deliveries.set_state(held, MessageState.PENDING_ACK, holder.branch)
            elif state is MessageState.PENDING_ACK and held.since < refresh:
                self._release(held)
                freed.add(position)
        return frozenset(freed)

    # -- one message ----------------------------------------------------------------------------------

    def _pend(self, held: HeldMessage) -> None:
        held.since = self._refreshes
        self._deliveries.set_state(held, MessageState.PENDING_ACK, held.holder)

    def _is_own(self, held: HeldMessage) -> bool:
        """
        Return whether its consumer acknowledged it in a transaction that counts, or is doing so outside transactions.
        """
        if held.holder is None:
            return held.own and held.state is MessageState.ACKING
        return held.own and self.claims.counts(held.holder) is True

    def _claim(self, held: HeldMessage) -> None:
        """Note that a consumer's message was found finished, unless this consumer acknowledged it."""
        if held.given_to is not None and held.given_to != DETACHED:
            self.claims.finished(held.given_to, held.position, held.holder if held.own else None)

    def _release(self, held: HeldMessage) -> None:
        held.own = False
        if held.cumulative and held.consumer is not None:
            self._deliveries.set_state(held, MessageState.DELIVERED)
            return
        held.redeliveries += 1
        self._deliveries.set_state(held, MessageState.WAITING)


def _messages_of(ack: Ack) -> list[Position]:
    """Return the messages of an individual acknowledgment."""
    at = ack.position
    indexes = range(-1, ack.batch_size) if ack.batch_indexes is None else sorted(ack.batch_indexes)
    return [Position(at.ledger_id, at.entry_id, index) for index in indexes]
