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
    """See ``txnframework.TransactionPart``."""

    def __init__(self, loop: LoopThread, part: asynchronous.TransactionPart) -> None:
        self._loop = loop
        self._part = part

    def __repr__(self) -> str:
        return f"<blocking {self._part!r}>"

    @property
    def id(self) -> TxnID:
        """Its id; another process takes part with ``Client.join``."""
        return self._part.id

    @property
    def branch(self) -> int:
        """The number of this part's branch."""
        return self._part.branch

    @property
    def asynchronous(self) -> asynchronous.TransactionPart:
        """The part that this one stands for."""
        return self._part


class Transaction(TransactionPart):
    """See ``txnframework.Transaction``: ``with`` begins, and commits on success or aborts on an exception."""

    def __init__(self, loop: LoopThread, transaction: asynchronous.Transaction) -> None:
        super().__init__(loop, transaction)
        self._transaction = transaction

    @property
    def state(self) -> State:
        """OPEN, COMMITTED or ABORTED, as last seen here."""
        return self._transaction.state

    def begin(self) -> None:
        """Begin it; ``with`` does."""
        self._loop.run(self._transaction.begin())

    def commit(self, branches: Iterable[int] = ()) -> None:
        """Decide that its branch and ``branches`` count."""
        self._loop.run(self._transaction.commit(branches))

    def abort(self) -> None:
        """Abort it; repeating it succeeds."""
        self._loop.run(self._transaction.abort())

    def __enter__(self) -> Self:
        self._loop.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._transaction.__aexit__(kind, error, trace))


class JoinedTransaction(TransactionPart):
    """See ``txnframework.JoinedTransaction``: leaving ``with`` waits for what is in flight."""

    def __init__(self, loop: LoopThread, joined: asynchronous.JoinedTransaction) -> None:
        super().__init__(loop, joined)
        self._joined = joined

    def finish(self) -> int:
        """Wait for what is in flight; return the branch to report."""
        return self._loop.run(self._joined.finish())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._joined.__aexit__(kind, error, trace))
