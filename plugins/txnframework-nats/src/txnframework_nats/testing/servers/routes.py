"""
The connections between the servers of a cluster, and proxies with which a server is cut off from the others.

    with CuttableRoutes(3) as routes, Nats(tmp_path, servers=3, routes=routes) as nats:
        routes.cut(0)  # clients still reach the first server
        routes.restore()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Self, TypeVar

from txnframework.testing.servers.clusters import LOCALHOST
from txnframework.testing.servers.processes import free_ports
from txnframework.testing.servers.proxy import Proxy

T = TypeVar("T")


class Routes:
    """Direct connections between ``servers`` servers; a single server has none."""

    advertised: ClassVar[str] = ""
    """The setting of the address that each server names to others."""

    def __init__(self, servers: int) -> None:
        self.ports = free_ports(servers)

    def lines(self, index: int) -> list[str]:
        """Return the lines of a server's configuration."""
        if len(self.ports) == 1:
            return []
        routes = ", ".join(f'"nats://{self.address(index, other)}"' for other, _ in enumerate(self.ports))
        return [
            f'cluster {{ name: "tests", listen: "{LOCALHOST}:{self.ports[index]}", routes: [{routes}],'
            f" no_advertise: true{self.advertised} }}"
        ]

    def address(self, index: int, other: int) -> str:  # noqa: ARG002 - for those who override it
        """Return the address at which the server ``index`` reaches another one."""
        return f"{LOCALHOST}:{self.ports[other]}"


class CuttableRoutes(Routes):
    """Connections through proxies, which run in a thread until the end of the block."""

    advertised = f', advertise: "{LOCALHOST}:1"'
    """An address where no server listens, so that servers use only the routes that are named to them."""

    def __init__(self, servers: int) -> None:
        super().__init__(servers)
        self._proxies: dict[tuple[int, int], Proxy] = {}
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="nats routes")

    def address(self, index: int, other: int) -> str:
        """Return the address at which the server ``index`` reaches another one."""
        if index == other:
            return super().address(index, other)
        return "{}:{}".format(*self._proxies[index, other].address)

    def cut(self, index: int) -> None:
        """Reset the connections of a server with all others, until ``restore``."""
        self._command(index, Proxy.cut)

    def stall(self, index: int) -> None:
        """Hold all data between a server and the others, until ``restore``; it is delivered then."""
        self._command(index, Proxy.stall)

    def restore(self) -> None:
        """Connect all servers."""
        for index, _ in enumerate(self.ports):
            self._command(index, Proxy.restore)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        for index, _ in enumerate(self.ports):
            for other, port in enumerate(self.ports):
                if index != other:
                    proxy = await self._stack.enter_async_context(Proxy((LOCALHOST, port)))
                    self._proxies[index, other] = proxy

    def _command(self, index: int, command: Callable[[Proxy], None]) -> None:
        async def run() -> None:
            for pair, proxy in self._proxies.items():
                if index in pair:
                    command(proxy)

        self._run(run())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
