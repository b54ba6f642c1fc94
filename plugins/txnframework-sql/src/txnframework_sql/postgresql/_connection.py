"""One held connection: statements, transactions, and what is known when one of them fails."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import asyncpg
from asyncpg.protocol import NO_TIMEOUT

from txnframework.errors import OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework_sql.postgresql._errors import POSTGRESQL_ERRORS, in_doubt, is_hopeless, translated
from txnframework_sql.postgresql._options import PostgresqlOptions
from txnframework_sql.postgresql._patience import Patience
from txnframework_sql.postgresql._qualified import HERE, qualified, quoted

if TYPE_CHECKING:
    from asyncpg.prepared_stmt import PreparedStatement

    Prepared = PreparedStatement[asyncpg.Record]

Row = asyncpg.Record
"""A row: by position, by column name, or taken apart as a tuple is."""

# Without READ WRITE: whoever set default_transaction_read_only means it.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_VIEW = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# How long a statement that was given up may take to end, before its connection is broken off.
_SETTLE_S = 5


@dataclass(frozen=True, slots=True)
class Backend:
    """The server's process for one connection; another one that gets its number later has another start."""

    pid: int
    started: datetime


class Connection:
    """
    A connection that is lent to one caller at a time.

    A statement outside a transaction is a transaction of its own. ``read`` and ``write`` differ in what is known if
    they fail: a read has changed nothing; a write that got no answer raises OutcomeUnknown, unless it stands in a
    transaction, which has changed nothing before its COMMIT was sent. Every error is the framework's own; ``Rerun`` is
    one after which the same work may be done again.
    """

    backend: Backend
    """The server's process for it; known before it is lent."""

    schema: str
    """The schema of the store's tables; known before it is lent."""

    def __init__(self, driver: asyncpg.Connection[Row], shown_url: str, options: PostgresqlOptions) -> None:
        self._driver = driver
        self._shown_url = shown_url
        self._statements_max = options.statements_max
        self._patience = Patience(options.reply_timeout_s, self.break_off)
        self._prepared: OrderedDict[str, Prepared] = OrderedDict()
        self._is_in_transaction = False
        # A statement was given up before its answer came: it may still be under way.
        self.is_unsettled = False
        # It was a write outside a transaction, or a COMMIT: it may still be done.
        self.is_in_doubt = False

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be sent over it any more."""
        return self._driver.is_closed()

    @property
    def is_idle(self) -> bool:
        """Whether the next one may have it as it is."""
        return not self.is_lost and not self.is_unsettled and not self._driver.is_in_transaction()

    async def read(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement that changes nothing, not even by a function that it calls."""
        return await self._fetch(text, arguments, may_be_done=False)

    async def write(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement that may change something (RETURNING, or a function's result)."""
        return await self._fetch(text, arguments, may_be_done=not self._is_in_transaction)

    async def change(self, text: str, *arguments: object) -> int:
        """Execute a statement that returns no rows; return how many it changed."""
        await self._fetch(text, arguments, may_be_done=not self._is_in_transaction)
        # Such as "UPDATE 3".
        return int((self._prepared[text].get_statusmsg() or "").rpartition(" ")[2])

    async def script(self, text: str) -> None:
        """Execute statements without arguments, separated by semicolons; outside a transaction all or none of them."""
        await self._execute(text, may_be_done=not self._is_in_transaction)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """
        Do everything in the block or nothing, in READ COMMITTED.

        An error in the block undoes it. OutcomeUnknown comes from its end only: COMMIT was sent and not answered.
        """
        await self._execute(_BEGIN, may_be_done=False)
        self._is_in_transaction = True
        try:
            try:
                yield
            except BaseException:
                await self._roll_back()
                raise
            await self._commit()
        finally:
            self._is_in_transaction = False

    @asynccontextmanager
    async def view(self) -> AsyncIterator[None]:
        """Let all reads in the block see one moment, which is not before the first of them."""
        await self._execute(_BEGIN_VIEW, may_be_done=False)
        try:
            yield
        finally:
            await self._roll_back()

    async def settle(self) -> None:
        """
        Wait for what was given up, and undo an open transaction; if that fails, break the connection off.

        The server has been told to give up what was; until it answers, nothing else may be sent.
        """
        try:
            # Real time, since it is spent outside this process.
            async with asyncio.timeout(_SETTLE_S):
                if self.is_unsettled:
                    with suppress(asyncpg.InFailedSQLTransactionError):
                        await self._driver.execute("SELECT 1")
                if self._driver.is_in_transaction():
                    await self._driver.execute("ROLLBACK")
            self.is_unsettled = self.is_in_doubt = False
        except POSTGRESQL_ERRORS:
            self.break_off()

    def break_off(self) -> None:
        """Let go of the connection at once, without a word to the server."""
        self._patience.close()
        self._driver.terminate()

    async def close(self) -> None:
        """Take leave of the server, which is not waited for for long."""
        self._patience.close()
        with suppress(*POSTGRESQL_ERRORS):
            await self._driver.close(timeout=1)

    async def _fetch(self, text: str, arguments: tuple[object, ...], *, may_be_done: bool) -> list[Row]:
        prepared = self._prepared.get(text)
        if prepared is None:
            prepared = await self._prepare(text)
        else:
            self._prepared.move_to_end(text)
        # Without ``_told``, and without the driver's timer, which all else has: they are a part of what a statement of
        # one record costs here.
        self._patience.begin()
        try:
            return await prepared.fetch(*arguments, timeout=NO_TIMEOUT)  # type: ignore[arg-type]
        except BaseException as error:
            self._note(error, text, may_be_done=may_be_done)
            raise
        finally:
            self._patience.end()

    async def _prepare(self, text: str) -> Prepared:
        # Nothing of it is executed yet, whatever it does.
        with self._told(text, may_be_done=False):
            prepared = await self._driver.prepare(self._qualified(text))
        self._prepared[text] = prepared
        if len(self._prepared) > self._statements_max:
            self._prepared.popitem(last=False)
        return prepared

    async def _execute(self, text: str, *, may_be_done: bool) -> str:
        with self._told(text, may_be_done=may_be_done):
            return await self._driver.execute(self._qualified(text))

    def _qualified(self, text: str) -> str:
        return qualified(text, quoted(self.schema, self._shown_url)) if HERE in text else text

    async def _commit(self) -> None:
        answer = await self._execute("COMMIT", may_be_done=True)
        if answer != "COMMIT":
            # The server rolls back a transaction in which a statement has failed, and calls that success.
            raise Unavailable(f"{self._shown_url} undid a transaction because a statement in it had failed")

    async def _roll_back(self) -> None:
        """Undo the transaction, if the connection is fit for it; otherwise ``settle`` or the server does."""
        if self.is_lost or self.is_unsettled:
            return
        with suppress(TxnFrameworkError):
            await self._execute("ROLLBACK", may_be_done=False)

    @contextmanager
    def _told(self, text: str, *, may_be_done: bool) -> Iterator[None]:
        """Translate what is raised, and note what state the connection is in."""
        try:
            yield
        except BaseException as error:
            self._note(error, text, may_be_done=may_be_done)
            raise

    def _note(self, error: BaseException, text: str, *, may_be_done: bool) -> None:
        """Note what state the connection is in after ``error``; raise, from it, the framework's own if there is one."""
        if not isinstance(error, POSTGRESQL_ERRORS):
            # Most of all a cancelled caller: the driver has asked the server to give up, and did not wait for it.
            self.is_unsettled = True
            self.is_in_doubt |= may_be_done
            return
        if isinstance(error, asyncpg.InvalidCachedStatementError | asyncpg.InvalidSQLStatementNameError):
            self._prepared.pop(text, None)
        if self._patience.is_over:
            # Instead of what the driver says of a connection that was broken off.
            error = TimeoutError("no reply came in time")
        told = (in_doubt if may_be_done else translated)(error, self._shown_url)
        self.is_in_doubt |= isinstance(told, OutcomeUnknown)
        if self.is_in_doubt or is_hopeless(error):
            self.break_off()
        raise told from error
