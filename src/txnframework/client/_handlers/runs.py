"""Running a handler for the messages of a consumer: each in a transaction, which acknowledges it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar, Unpack, overload

from txnframework.broker import Host
from txnframework.client._arguments import whole_number
from txnframework.client._base import RetryPolicy, backoff_of
from txnframework.client._content_types import T_co
from txnframework.client._handlers.attempts import Attempt, Connect, HandlerAttempts
from txnframework.client._handlers.handler_functions import HandlerFunction, Outgoing, handler_function
from txnframework.client._handlers.loop import HandlerLoop, LoopDelays
from txnframework.client._handlers.messages import HandledMessages
from txnframework.client._handlers.options import MESSAGES_MAX, RunOptions, loop_options
from txnframework.client._handlers.plan import LoopOptions
from txnframework.client._handlers.shared_commits import SharedCommits
from txnframework.client._handlers.signals import signals_of, stopping_at
from txnframework.client._handlers.transactions import EarlyTransaction, HandlerTransactions
from txnframework.client._messages import Message
from txnframework.client._planned import PlannedAck
from txnframework.client._subscription.inbox import Inbox
from txnframework.client._subscription.options import ConsumerOptions
from txnframework.client._subscription.segments import FollowedSegments
from txnframework.client._transaction import Transaction, TransactionPart
from txnframework.errors import Closed, InvalidInput, Unavailable
from txnframework.model.transactions import Begin
from txnframework.runtime.backoff import Backoff


class HasTransaction(Protocol):
    """What a caller's own context manager may yield: an object with the transaction, and whatever else it needs."""

    @property
    def txn(self) -> TransactionPart:
        """The transaction that acknowledges the messages."""


Given = TypeVar("Given", bound="TransactionPart | HasTransaction")
"""What a handler gets beside its messages."""

Connection = TypeVar("Connection")
"""What the application's connection is."""

Open = Callable[[], AbstractAsyncContextManager[Given]]


class HandlerRuns(ABC, Generic[T_co]):
    """The part of a consumer that runs handlers."""

    _host: Host
    _segments: FollowedSegments
    _inbox: Inbox
    _options: ConsumerOptions
    _closed: bool
    _loop: HandlerLoop | None = None
    _transactions: HandlerTransactions | None = None

    @abstractmethod
    async def receive_many(self, *, messages_max: int, timeout_ms: int | None = None) -> tuple[Message[T_co], ...]:
        """Return at least one and at most ``messages_max`` messages."""

    @abstractmethod
    async def ack(self, *messages: Any, txn: TransactionPart | None = None) -> None:
        """Acknowledge messages."""

    @abstractmethod
    def acknowledging(self, *messages: Any) -> PlannedAck:
        """Return acknowledgments for ``Client.transact``."""

    @abstractmethod
    def notice(self) -> None:
        """Let a call of ``receive_many`` look again."""

    @abstractmethod
    def _require_open(self) -> None:
        """Raise Closed if the consumer was closed."""

    @overload
    async def run(
        self,
        handler: Callable[[Message[T_co]], Awaitable[Outgoing]],
        *,
        transaction: None = None,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: Callable[[Message[T_co], Transaction], Awaitable[object]],
        *,
        transaction: None = None,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: Callable[[Message[T_co], Connection], Awaitable[Outgoing]],
        *,
        commit_with: Callable[[], AbstractAsyncContextManager[Connection]],
        transaction: None = None,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: Callable[[Message[T_co], Given], Awaitable[object]],
        *,
        transaction: Open[Given],
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: Callable[[Message[T_co], None], Awaitable[object]] | Callable[[Message[T_co]], Awaitable[None]],
        *,
        transaction: None = None,
        transactional: Literal[False],
        **options: Unpack[RunOptions],
    ) -> None: ...

    async def run(
        self,
        handler: Callable[..., Awaitable[object]],
        *,
        commit_with: Connect | None = None,
        transaction: Open[Any] | None = None,
        transactional: bool = True,
        **options: Unpack[RunOptions],
    ) -> None:
        """
        Call the handler for each message, and acknowledge the message in one transaction with what the handler sends.

        ``handler(message)`` returns what is to be sent: None, ``producer.outgoing(...)``, or several of these.
        ``Client.transact`` sends this and acknowledges the message. ``handler(message, txn)`` gets a transaction, and
        sends with ``txn=txn``; the message is acknowledged in the transaction, which is then committed.

        If the handler raises, nothing takes effect, and the message is redelivered after a delay, which grows with each
        delivery. A temporary error (Unavailable, OutcomeUnknown, TransactionConflict, InvalidTransactionState; a
        deadlock or a lost connection of your database) is tried again first, without a redelivery. If the subscription
        type keeps an order, later messages of the key or segment wait meanwhile, and others do not. Failures are
        logged.

        An error before the handler begins, as when a database refuses the connection, is tried again until it has
        passed. So are Unavailable after the handler, and a backlog quota that refuses what it sends, and topics of the
        transaction of which some have migrated to another family and others have not. Meanwhile the message waits, and
        no delivery counts.

        If the caller is cancelled, the running handlers are cancelled, their transactions are aborted, and their
        messages are redelivered. The consumer stays open.

        :param handler: a coroutine function. If it accepts two arguments, it gets the transaction, and its result is
            ignored.
        :param commit_with: how to get a connection or session to the database of the metadata store: a function that
            returns an async context manager, such as ``pool.acquire`` or an ``async_sessionmaker``. The handler gets
            what it yields, in an open transaction, and writes its rows there. What it returns is sent. Rows, messages
            and the acknowledgment take effect by one COMMIT; see ``Client.transact``.
        :param transaction: how to begin a transaction: a function that returns an async context manager. It yields the
            transaction, or an object whose attribute ``txn`` is the transaction; the handler gets what it yields.
            Default: ``Client.transaction()`` of the domain of the consumer's topics.
        :param transactional: False: there is no transaction, a second argument is None, and the message is acknowledged
            after the handler. A handler may then see a message again that it has handled.
        :param concurrency: how many handlers run at a time; default: 1. The results of earlier ones may still have to
            be committed, except those of messages of the same segment or key whose order is kept.
        :param retries_max: how often the same messages are tried again after temporary errors; default: 5.
        :param redelivery_delay_ms_max: the longest delay before a redelivery; default: 60,000. The first delay is
            ``subscriptions.redelivery_delay_ms``.
        :param drain_timeout_ms: how long handlers may go on after ``stop``; default: 30,000. Then they are cancelled.
        :param stop_on_signals: signals that call ``stop``, such as SIGTERM; default: none. The earlier handlers of the
            signals are restored in the end.
        :raises InvalidInput: an option is invalid, the handler does not accept one or two arguments, is not a coroutine
            function or returned what is not to be sent, ``transaction`` yields no transaction, the connections of
            ``commit_with`` cannot be used, the consumer runs a handler already, or the topics have no transactions of
            one family.
        :raises LeaseLost: as in ``receive``.
        """
        await self._run(
            handler_function(handler, takes_several=False),
            commit_with,
            transaction,
            transactional,
            loop_options(1, options),
            options,
        )

    @overload
    async def run_batches(
        self,
        handler: Callable[[tuple[Message[T_co], ...]], Awaitable[Outgoing]],
        *,
        messages_max: int = MESSAGES_MAX,
        transaction: None = None,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    async def run_batches(
        self,
        handler: Callable[[tuple[Message[T_co], ...], Transaction], Awaitable[object]],
        *,
        messages_max: int = MESSAGES_MAX,
        transaction: None = None,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    async def run_batches(
        self,
        handler: Callable[[tuple[Message[T_co], ...], Connection], Awaitable[Outgoing]],
        *,
        commit_with: Callable[[], AbstractAsyncContextManager[Connection]],
        messages_max: int = MESSAGES_MAX,
        transaction: None = None,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    async def run_batches(
        self,
        handler: Callable[[tuple[Message[T_co], ...], Given], Awaitable[object]],
        *,
        messages_max: int = MESSAGES_MAX,
        transaction: Open[Given],
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    async def run_batches(
        self,
        handler: Callable[[tuple[Message[T_co], ...], None], Awaitable[object]]
        | Callable[[tuple[Message[T_co], ...]], Awaitable[None]],
        *,
        messages_max: int = MESSAGES_MAX,
        transaction: None = None,
        transactional: Literal[False],
        **options: Unpack[RunOptions],
    ) -> None: ...

    async def run_batches(
        self,
        handler: Callable[..., Awaitable[object]],
        *,
        messages_max: int = MESSAGES_MAX,
        commit_with: Connect | None = None,
        transaction: Open[Any] | None = None,
        transactional: bool = True,
        **options: Unpack[RunOptions],
    ) -> None:
        """
        Call ``handler(messages)`` or ``handler(messages, txn)`` for up to ``messages_max`` messages, which are
        acknowledged in one transaction; otherwise as ``run``.

        If the handler fails, each of its messages is handled alone, so that only those are redelivered that fail again.
        A message that was delivered before is handled alone too.

        :param messages_max: the largest batch; default: 100. A handler gets those messages that are there, at least
            one.
        """
        whole_number(messages_max, "messages_max", 1)
        await self._run(
            handler_function(handler, takes_several=True),
            commit_with,
            transaction,
            transactional,
            loop_options(messages_max, options),
            options,
        )

    def stop(self) -> None:
        """
        Let ``run`` call no further handler, and return when the running handlers have ended.

        A second call cancels these handlers. Without a run in progress, nothing happens.
        """
        if self._loop is not None:
            self._loop.stop()

    async def _run(
        self,
        handler: HandlerFunction,
        commit_with: Connect | None,
        transaction: Open[Any] | None,
        transactional: bool,
        bounds: LoopOptions,
        options: RunOptions,
    ) -> None:
        self._require_open()
        attempt, own = self._attempt(handler, commit_with, transaction, transactional, bounds)
        signals = signals_of(options.get("stop_on_signals", ()))
        if self._loop is not None:
            raise InvalidInput(f"this consumer of subscription {self._options.subscription} runs a handler already")
        messages = HandledMessages(self._segments, self._inbox, self._options.type.ordering, self.notice)
        environment, first_ms = self._host.environment, self._host.config.subscriptions.redelivery_delay_ms
        redelivery = Backoff(environment, first_ms, max(first_ms, bounds.delay_ms_max))
        delays = LoopDelays(backoff_of(environment, self._host.config.client), redelivery)
        name = f"the handler of subscription {self._options.subscription}"
        loop = self._loop = HandlerLoop(self._receive_for_loop, messages, attempt, environment, delays, bounds, name)
        self._transactions = own
        try:
            with stopping_at(signals, loop.stop):
                await loop.run()
        except Closed:
            if not self._closed:
                raise
        finally:
            self._loop = self._transactions = None
            if own is not None:
                own.give_up()

    async def _receive_for_loop(self, messages_max: int) -> Sequence[Message[Any]]:
        received = await self.receive_many(messages_max=messages_max)
        if self._transactions is not None:
            self._transactions.messages_received()
        return received

    def _attempt(
        self,
        handler: HandlerFunction,
        commit_with: Connect | None,
        transaction: Open[Any] | None,
        transactional: bool,
        bounds: LoopOptions,
    ) -> tuple[Attempt, HandlerTransactions | None]:
        """Return how messages are handled, and the transactions for it, if the loop begins them."""
        attempts = HandlerAttempts(self._host, self, handler)
        if not transactional:
            if transaction is not None or commit_with is not None:
                raise InvalidInput("transactional=False and a transaction exclude each other; leave one of them out")
            return attempts.without_transaction, None
        if commit_with is not None:
            if transaction is not None:
                raise InvalidInput("commit_with and transaction exclude each other; leave one of them out")
            if not handler.takes_transaction:
                raise InvalidInput(f"{handler} has no second argument, which would get the connection of commit_with")
            own = self._own_transactions(bounds)
            return partial(attempts.with_rows, commit_with, own), own
        if transaction is None:
            own = self._own_transactions(bounds)
            if handler.takes_transaction:
                return partial(attempts.in_transaction, own.open), own
            return partial(attempts.planned, SharedCommits(self._host, self, own)), own
        if handler.takes_transaction:
            return partial(attempts.in_transaction, transaction), None
        raise InvalidInput(f"{handler} has no second argument, which would get what the option transaction yields")

    def _own_transactions(self, bounds: LoopOptions) -> HandlerTransactions:
        """Return transactions of the domain of the topics, which may change: a topic may migrate to another domain."""
        self._shared_domain()
        host, request = self._host, Begin(self._host.config.transactions.timeout_ms, "")
        retry = RetryPolicy(host.environment, host.config.client)
        return HandlerTransactions(
            lambda domain: EarlyTransaction(host, retry, request, (domain, ""), False),
            self._present_domain,
            lambda: min(bounds.concurrency, -(-self._inbox.count_free() // bounds.messages_max)),
            host.environment,
            request,
        )

    def _present_domain(self) -> str:
        """
        Return the domain of the topics, which they shared when the run began.

        While some of several topics have migrated and others have not, the messages wait: they are not at fault, and
        the run does not end.
        """
        try:
            return self._shared_domain()
        except InvalidInput as error:
            reason = "some of these topics have migrated to another family: messages wait until the others have"
            raise Unavailable(f"{', '.join(sorted(map(str, self._segments.topics)))}: {reason}") from error

    def _shared_domain(self) -> str:
        topics = sorted(map(str, self._segments.topics))
        domain = self._host.shared_domain(*topics)
        if domain is None:
            raise InvalidInput(
                f"{', '.join(topics)}: no plugin provides transactions over these topics; pass transactional=False to "
                "acknowledge each message after its handler"
            )
        return domain
