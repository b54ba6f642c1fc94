"""A client that is opened in the background, and again until the stores answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

from txnframework.client import Client
from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError, Unavailable
from txnframework.runtime.tasks import start_task

RETRY_MS = 2_000
FIRST_TRY_S = 3
"""How long a command that serves waits for the stores at its start. After that it serves, and goes on trying."""

OpenClient = Callable[[], AbstractAsyncContextManager[Client]]


class BackgroundClient:
    """
    Opens a client, and tries again while the stores are unavailable; a client that is open recovers by itself.

    ``async with`` starts it, and closes the client at the end.
    """

    def __init__(self, open_client: OpenClient, environment: Environment) -> None:
        self._open_client = open_client
        self._environment = environment
        self._client: Client | None = None
        self._problem: TxnFrameworkError = Unavailable("the stores have not answered yet")
        self._tried = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> BackgroundClient:
        self._task = start_task(self._keep_open())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._task is not None:
            if self._client is None:
                self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def tried(self, wait_s: float | None = None) -> None:
        """
        Wait for the end of the first attempt, at most for ``wait_s``; the stores may be unavailable afterwards.

        :raises TxnFrameworkError: the client cannot be opened for another reason, which no further attempt changes.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._tried.wait()
        if self._task is not None and self._task.done():
            await self._task

    def client(self) -> Client:
        """
        Return the client.

        :raises TxnFrameworkError: it is not open; the error says why.
        """
        if self._client is None:
            raise self._problem
        return self._client

    async def _keep_open(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    async with self._open_client() as self._client:
                        self._tried.set()
                        await self._closing.wait()
                    return
                except Unavailable as error:
                    if self._closing.is_set():
                        return  # closing failed too; what was not released ends with the session
                    self._problem = error
                finally:
                    self._client = None
                self._tried.set()
                await self._environment.sleep_until(self._environment.now_ms() + RETRY_MS)
        except TxnFrameworkError as error:
            self._problem = error
            raise
        finally:
            self._tried.set()
