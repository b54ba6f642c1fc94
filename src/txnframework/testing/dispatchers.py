"""The harness for dispatchers: they use no stores and no I/O."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from txnframework.interfaces import IDispatcher
from txnframework.plugin import DispatcherContext, Provider
from txnframework.testing.harness import Harness

SEGMENT = "segment://public/default/suite/0000-ffff-0"
SUBSCRIPTION = "suite"


class DispatcherHarness(Harness[IDispatcher]):
    """Opens dispatchers of one subscription on one segment; subclass it and set ``provider``."""

    provider: ClassVar[Provider[DispatcherContext, IDispatcher]]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IDispatcher]:
        """Open a dispatcher."""
        yield await self.provider.open(DispatcherContext(SEGMENT, SUBSCRIPTION, self.environment))
