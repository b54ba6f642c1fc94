"""Transactions without ``await``."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from txnframework import client as asynchronous
from txnframework.blocking._methods import Wrapper, awaited
from txnframework.model.ids import TxnID
from txnframework.model.transactions import State


class TransactionPart(Wrapper[asynchronous.TransactionPart]):
    """A part of a transaction without ``await``; see ``txnframework.TransactionPart``."""

    @property
    def id(self) -> TxnID:
        """The transaction's id; another process takes part with ``Client.join``."""
        return self._asynchronous.id

    @property
    def branch(self) -> int:
        """The number of this part's branch."""
        return self._asynchronous.branch


class Transaction(TransactionPart):
    """
    The transaction without ``await``; see ``txnframework.Transaction``.

    ``with`` begins it, and commits on success or aborts on an exception.
    """

    _asynchronous: asynchronous.Transaction

    @property
    def state(self) -> State:
        """OPEN, COMMITTED or ABORTED, as last known to this process."""
        return self._asynchronous.state

    begin = awaited(asynchronous.Transaction.begin)
    commit = awaited(asynchronous.Transaction.commit)
    abort = awaited(asynchronous.Transaction.abort)

    def __enter__(self) -> Self:
        self._loop.run(self._asynchronous.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._asynchronous.__aexit__(kind, error, trace))


class JoinedTransaction(TransactionPart):
    """
    The joined part without ``await``; see ``txnframework.JoinedTransaction``.

    Leaving ``with`` waits for the operations in flight.
    """

    _asynchronous: asynchronous.JoinedTransaction

    finish = awaited(asynchronous.JoinedTransaction.finish)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._asynchronous.__aexit__(kind, error, trace))
