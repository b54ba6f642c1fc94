"""An acknowledgment in a transaction whose outcome is not known yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from txnframework.broker.dispatch.ack_progress import AckProgress
from txnframework.broker.dispatch.deliveries import HeldMessage
from txnframework.model.acks import AckRequest
from txnframework.model.ids import Branch, TxnID


class AckOwner(Protocol):
    """The dispatch whose acknowledgments are recorded."""

    @property
    def incarnation(self) -> int:
        """The cursor's incarnation under which the messages were read."""

    def is_attached(self, consumer_id: int) -> bool:
        """Return whether a consumer is attached and the lease is held."""

    def remove_finished(self, done: Iterable[HeldMessage]) -> None:
        """Remove messages that are acknowledged."""

    async def refresh(self) -> None:
        """Update the messages from the stores."""

    def request_refresh(self) -> None:
        """Request a refresh soon."""

    def expect_end(self, txn_id: TxnID) -> None:
        """Let a transaction that is about to hold messages report its end."""

    async def load_outcome(self, branch: Branch) -> None:
        """Load the outcome of a branch, so that ``AckProgress`` knows it."""


class AckInProgress:
    """
    The messages of one request, marked until its outcome is noted by one of the methods.

    ``held`` are the covered messages that another transaction held at the last refresh. ``ended`` is set with the
    outcome.
    """

    def __init__(
        self,
        owner: AckOwner,
        progress: AckProgress,
        ended: asyncio.Event,
        begun: list[HeldMessage],
        held: list[HeldMessage],
        request: AckRequest,
        consumer: int | None,
    ) -> None:
        self._owner = owner
        self._progress = progress
        self._ended = ended
        self._begun = begun
        self._held = held
        self._request = request
        self._consumer = consumer
        owner.expect_end(request.branch.txn_id)

    def recorded(self) -> None:
        """Let the transaction hold the messages."""
        self._progress.pend(self._begun)
        # A transaction that held messages was aborted: an open or committed one would have caused a conflict.
        cumulative = any(ack.cumulative for ack in self._request.acks)
        self._progress.take_over(self._held, self._request.branch, cumulative=cumulative, consumer=self._consumer)
        self._ended.set()

    def refused(self) -> None:
        """Free the messages, after nothing was recorded; another transaction may hold them, so refresh soon."""
        self._progress.undo_ack(self._begun)
        self._owner.request_refresh()
        self._ended.set()

    def unsure(self) -> None:
        """Treat the messages as held after an unknown outcome, and refresh before any of them is redelivered."""
        self._progress.pend(self._begun)
        self._owner.request_refresh()
        self._ended.set()
