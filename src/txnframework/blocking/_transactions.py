"""Transactions without ``await``."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from txnframework import client as asynchronous
from txnframework.client import LoopThread
from txnframework.model.ids import TxnID
from txnframework.model.transactions import State


class TransactionPart:
    """A part of a transaction without ``await``; see ``txnframework.TransactionPart``."""

    def __init__(self, loop: LoopThread, part: asynchronous.TransactionPart) -> None:
        self._loop = loop
        self._part = part

    def __repr__(self) -> str:
        return f"<blocking {self._part!r}>"

    @property
    def id(self) -> TxnID:
        """The transaction's id; another process takes part with ``Client.join``."""
        return self._part.id

    @property
    def branch(self) -> int:
        """The number of this part's branch."""
        return self._part.branch

    @property
    def asynchronous(self) -> asynchronous.TransactionPart:
        """The asynchronous part that this one wraps."""
        return self._part


class Transaction(TransactionPart):
    """
    The transaction without ``await``; see ``txnframework.Transaction``.

    ``with`` begins it, and commits on success or aborts on an exception.
    """

    def __init__(self, loop: LoopThread, transaction: asynchronous.Transaction) -> None:
        super().__init__(loop, transaction)
        self._transaction = transaction

    @property
    def state(self) -> State:
        """OPEN, COMMITTED or ABORTED, as last known to this process."""
        return self._transaction.state

    def begin(self) -> None:
        """Begin the transaction; ``with`` calls this."""
        self._loop.run(self._transaction.begin())

    def commit(self, branches: Iterable[int] = ()) -> None:
        """Commit this branch and ``branches``."""
        self._loop.run(self._transaction.commit(branches))

    def abort(self) -> None:
        """Abort the transaction; repeating the abort succeeds."""
        self._loop.run(self._transaction.abort())

    def __enter__(self) -> Self:
        self._loop.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._transaction.__aexit__(kind, error, trace))


class JoinedTransaction(TransactionPart):
    """
    The joined part without ``await``; see ``txnframework.JoinedTransaction``.

    Leaving ``with`` waits for the operations in flight.
    """

    def __init__(self, loop: LoopThread, joined: asynchronous.JoinedTransaction) -> None:
        super().__init__(loop, joined)
        self._joined = joined

    def finish(self) -> int:
        """Wait for the operations in flight, and return the branch to report."""
        return self._loop.run(self._joined.finish())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._joined.__aexit__(kind, error, trace))
