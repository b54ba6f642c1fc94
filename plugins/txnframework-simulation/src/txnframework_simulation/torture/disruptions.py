"""
Disruptions of a run. Processes are killed and paused. Their connections are cut, delayed and half closed. Servers are
killed and restarted; the members of a cluster fail one at a time, in the ways that it offers.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from txnframework.plugin import Server
from txnframework.testing.servers.proxy import Proxy, Side
from txnframework_simulation.torture.member import Member

BETWEEN_SECONDS = (0.4, 2.5)
PAUSE_SECONDS = (0.5, 14.0)
"""From shorter than any timeout to longer than the timeout of a session."""
CUT_SECONDS = (0.1, 5.0)
DELAY_MS = (5, 400)
DOWN_SECONDS = (0.0, 4.0)
SERVERS_CHANCE = 0.06
"""The probability of a disruption of a server, if servers were started for the run."""
MEMBERS_CHANCE = 0.3
"""The same if a server is a cluster, of which the others should work on."""
ALL_MEMBERS_CHANCE = 0.1
"""The probability that a disruption of a cluster kills all its members together."""

Disruption = Callable[[Member], Awaitable[None]]


class Disruptions:
    """
    Draws disruptions of processes and servers from a seed. ``counts`` has the number of each kind, ``disconnections``
    the number of cut connections, ``broken`` the servers that did not restart.

    Each disruption is appended to a file, with a time of the histories' clock.
    """

    def __init__(
        self, members: Sequence[Member], seed: int, file: Path, servers: Mapping[str, Server] = MappingProxyType({})
    ) -> None:
        self.broken: list[str] = []
        self._servers = servers
        self._restarting: asyncio.Task[None] | None = None
        self._over = threading.Event()
        self.counts: Counter[str] = Counter()
        self._of_servers: Counter[str] = Counter()
        self._of_members: Counter[str] = Counter()
        has_members = any(server.members for server in servers.values())
        self._servers_chance = MEMBERS_CHANCE if has_members else SERVERS_CHANCE
        self.disconnections = 0
        self._members = members
        self._chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._file = file
        self._disrupted: dict[int, asyncio.Task[None]] = {}

    def summary(self) -> dict[str, int]:
        """Return the counts for the report."""
        to_processes = {"kills": self.counts["kill"], "pauses": self.counts["pause"]}
        others = sum(self.counts.values()) - sum(to_processes.values())
        if self._servers:
            to_processes["kills of servers"] = self._of_servers["kill"]
        to_members = {f"{name}s of members": found for name, found in sorted(self._of_members.items())}
        others -= self._of_servers.total() + self._of_members.total()
        return to_processes | to_members | {"network disruptions": others, "connections cut": self.disconnections}

    async def run(self) -> None:
        """Cause one disruption after the other until this is cancelled, then end the current ones."""
        try:
            while True:
                await asyncio.sleep(self._chance.uniform(*BETWEEN_SECONDS))
                if self._servers and self._chance.random() < self._servers_chance:
                    self._disrupt_server()
                free = [one for one in self._members if one.works and one.number not in self._disrupted]
                if free:
                    self._disrupt_member(self._chance.choice(free))
        finally:
            for task in tuple(self._disrupted.values()):
                task.cancel()
            await asyncio.gather(*self._disrupted.values(), return_exceptions=True)
            self._over.set()
            if self._restarting is not None:
                # A restart is not cancelled, because that could leave the server stopped.
                await self._restarting

    def _disrupt_server(self) -> None:
        if self._restarting is not None and not self._restarting.done():
            return
        name = self._chance.choice(sorted(self._servers))
        server = self._servers[name]
        if server.members and self._chance.random() > ALL_MEMBERS_CHANCE:
            member = self._chance.choice(server.members)
            what = self._chance.choice(sorted(member.failures))
            fail, recover, seconds = member.failures[what], member.recover, self._chance.uniform(*PAUSE_SECONDS)
            self._of_members[what] += 1
            name = f"{name} {member.name}"
        else:
            what, fail, recover, seconds = "kill", server.kill, server.start, self._chance.uniform(*DOWN_SECONDS)
            self._of_servers[what] += 1
        self.counts[f"{what} of a server"] += 1
        self._note(what, {"server": name})
        self._restarting = asyncio.create_task(self._fail(name, fail, recover, seconds))

    async def _fail(self, name: str, fail: Callable[[], None], recover: Callable[[], None], seconds: float) -> None:
        """Let a server fail for some time, and recover with its data, which must contain every confirmed write."""

        def fail_and_recover() -> None:
            fail()
            self._over.wait(seconds)
            recover()

        try:
            await asyncio.to_thread(fail_and_recover)
        except (OSError, RuntimeError) as error:
            self.broken.append(f"{name} did not recover: {error}")
        self._note("over", {"server": name})

    def _disrupt_member(self, member: Member) -> None:
        choices: dict[Disruption, int] = {self.kill: 4, self.pause: 3}
        if member.proxies:
            choices |= {self.reset: 3, self.cut: 2, self.stall: 2, self.delay: 1, self.half_close: 1, self.mute: 2}
        (chosen,) = self._chance.choices(list(choices), list(choices.values()))
        name = getattr(chosen, "__name__", "")
        self.counts[name] += 1
        self._note(name, {"process": member.name})
        task = asyncio.create_task(self._disrupt(chosen, member))
        self._disrupted[member.number] = task
        task.add_done_callback(lambda _: self._disrupted.pop(member.number, None))

    async def _disrupt(self, disruption: Disruption, member: Member) -> None:
        try:
            await disruption(member)
        finally:
            member.signal(signal.SIGCONT)
            for proxy in member.proxies.values():
                proxy.restore()
            self._note("over", {"process": member.name})

    # -- to the process -------------------------------------------------------------------------------

    async def kill(self, member: Member) -> None:
        """Kill the process at any moment."""
        member.signal(signal.SIGKILL)
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))

    async def pause(self, member: Member) -> None:
        """Pause the process, so that others take over its leases, then let it continue."""
        member.signal(signal.SIGSTOP)
        await self._wait(PAUSE_SECONDS)

    # -- to its connections ---------------------------------------------------------------------------

    async def reset(self, member: Member) -> None:
        """
        End the connections of the process.

        It may reconnect immediately.
        """
        self._cut_off(member, Proxy.reset_connections)

    async def cut(self, member: Member) -> None:
        """End the connections of the process, and refuse new ones for some time."""
        self._cut_off(member, Proxy.cut)
        await self._wait(CUT_SECONDS)

    async def stall(self, member: Member) -> None:
        """Hold back all data for some time, then deliver it."""
        for proxy in member.proxies.values():
            proxy.stall()
        await self._wait(CUT_SECONDS)

    async def delay(self, member: Member) -> None:
        """Delay all data."""
        for proxy in member.proxies.values():
            proxy.delay(self._chance.randint(*DELAY_MS))
        await self._wait(CUT_SECONDS)

    async def half_close(self, member: Member) -> None:
        """Signal the end of data to one side of each connection."""
        sender = self._chance.choice(tuple(Side))
        self._cut_off(member, lambda proxy: proxy.half_close(sender))
        await self._wait(CUT_SECONDS)

    async def mute(self, member: Member) -> None:
        """Lose replies, so that outcomes are unknown; then reset the connections."""
        for proxy in member.proxies.values():
            proxy.drop(Side.SERVER)
        await self._wait((0.05, 2.0))
        self._cut_off(member, Proxy.reset_connections)

    def _cut_off(self, member: Member, how: Callable[[Proxy], None]) -> None:
        for proxy in member.proxies.values():
            self.disconnections += proxy.connections
            how(proxy)

    async def _wait(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._chance.uniform(*seconds))

    def _note(self, what: str, whom: dict[str, str]) -> None:
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode({"at_ns": time.monotonic_ns(), **whom, "disruption": what}) + b"\n")
