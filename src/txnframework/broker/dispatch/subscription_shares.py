"""The processes that share a subscription of a topic: who they are, and which segments each of them dispatches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from txnframework.broker.coordination import Holder, held_leases, holder_of
from txnframework.broker.dispatch.subscription_types import require_type
from txnframework.broker.division import divide
from txnframework.broker.lease_names import dispatching_lease, dispatching_leases, is_lease_of, member_lease, member_of
from txnframework.broker.rosters import HeldLeases, Roster
from txnframework.environment import Environment
from txnframework.errors import Closed, Conflict, LeaseLost, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.interfaces import IMetadataStore
from txnframework.model.key_hashes import key_hash
from txnframework.model.names import TopicName
from txnframework.runtime.concurrency import KeyedLock
from txnframework.runtime.tasks import BackgroundTask, RetryingTasks, repeat_until_closed


@dataclass(frozen=True, slots=True)
class SharingView:
    """
    The leases of a shared subscription, as one process read them.

    * ``members``: the sessions of the processes that share it, in the same order for every process.
    * ``holders``: for each segment that is dispatched, the session of the process that does, member or not.
    * ``processes``: for each member, the name of its process.
    """

    session: str
    members: tuple[str, ...]
    holders: Mapping[str, str]
    processes: Mapping[str, str]

    def divided(self, segments: Iterable[str], own: frozenset[str]) -> dict[str, str]:
        """
        Return which member is to dispatch each of these segments, as every member decides it.

        ``own``: the segments that this process dispatches now; what was read of its leases may be out of date. Segments
        of processes that are no members are left out: these do not share.
        """
        held = {one: holder for one, holder in self.holders.items() if holder != self.session}
        held |= dict.fromkeys(own, self.session)
        parts = [one for one in segments if held.get(one, self.session) in self.members]
        return divide(self.members, parts, held)

    def is_free(self, segment: str) -> bool:
        """Return whether no other process dispatches a segment."""
        return self.holders.get(segment, self.session) == self.session


def view_of(
    topic: TopicName, subscription: str, session: str, leases: HeldLeases, subscription_type: str = ""
) -> SharingView:
    """
    Return what the held leases say.

    A process that uses the subscription with another type is no member: it is about to be refused.

    A process that was restarted under its consumer's name has the place of the process before it. So the segments that
    the earlier process still holds are counted as held by the later one.
    """
    names: dict[str, str] = {}
    processes: dict[str, str] = {}
    members = []
    for name, record in leases.items():
        member = member_of(name, topic, subscription)
        if member is not None:
            holder = Holder.parse(holder_of(record))
            if holder.subscription_type not in ("", subscription_type):
                continue
            members.append(member)
            processes[member] = holder.process or member
            if holder.consumer:
                names[holder.consumer] = member
    members.sort(key=lambda one: (key_hash(f"{topic} {one}".encode()), one))
    holders: dict[str, str] = {}
    for name, record in leases.items():
        segment = name.removeprefix(dispatching_lease("", subscription))
        if member_of(name, topic, subscription) is None:
            holder = Holder.parse(holder_of(record))
            named = names.get(holder.consumer)
            holders[segment] = holder.session if holder.session in members or named is None else named
    return SharingView(session, tuple(members), holders, processes)


class SubscriptionShare:
    """
    This process's membership among those that share one subscription of a topic.

    It only sees and shows: its consumers take segments and give them up. ``view`` is None while this process is not
    registered, as after the end of its session.
    """

    def __init__(
        self,
        store: IMetadataStore,
        environment: Environment,
        process: str,
        topic: TopicName,
        subscription: str,
        name: str | None,
        subscription_type: str,
    ) -> None:
        self.subscription_type = subscription_type
        self.view: SharingView | None = None
        self.changed: dict[Callable[[], None], None] = {}
        """Called whenever ``view`` may have changed, one for each consumer, in the order in which they joined."""
        self._store = store
        self._process = process
        self._topic = topic
        self._subscription = subscription
        self._name = name
        self._roster = Roster(store, environment, dispatching_leases(topic, subscription))
        self._replaces = name is not None
        self._seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seen.add_done_callback(lambda seen: seen.cancelled() or seen.exception())
        self._work = BackgroundTask(lambda: repeat_until_closed(self._participate, environment))

    async def start(self) -> None:
        """Register, and return when the members are known; an error of the first attempt is raised."""
        self._work.start()
        await asyncio.shield(self._seen)

    async def stop(self) -> None:
        """Leave: the other members divide the segments among themselves; may be repeated after an error."""
        await self._work.stop()
        self._show(None)
        # It may be held also where the reply to acquiring it was lost, or to an earlier attempt to release it.
        await (await self._store.acquire_lease(self._lease, self._holder)).release()

    async def abandon(self) -> None:
        """Stop without leaving; the lease ends with the session."""
        await self._work.stop()

    @property
    def _lease(self) -> str:
        return member_lease(self._topic, self._subscription, self._store.session)

    @property
    def _holder(self) -> str:
        return str(Holder(self._name or "", self._process, self._store.session, self.subscription_type))

    async def _participate(self) -> None:
        try:
            if self._name is not None and not self._replaces:
                # It was replaced. Otherwise two living processes with one name would replace each other without end.
                await self._roster.wait_for(lambda leases: not self._namesakes(leases))
            leases = await self._roster.leases()
            self._require_type(leases)
            if self._replaces:
                await self._replace(self._namesakes(leases))
            await self._roster.take_part(self._lease, self._holder, self._look, lambda: None)
        except TxnFrameworkError as error:
            if not self._seen.done():
                self._seen.set_exception(error)
            raise
        finally:
            self._show(None)

    async def _replace(self, earlier: Mapping[str, int]) -> None:
        """Replace earlier processes with a consumer of this name, once."""
        if earlier:
            # Registered first: processes that were replaced before must not find the place free. If this process dies
            # here, the earlier one goes on, and the lease ends with the session.
            await self._store.acquire_lease(self._lease, self._holder)
        for name, version in earlier.items():
            await self._store.break_lease(name, version)
        self._replaces = False

    def _namesakes(self, leases: HeldLeases) -> dict[str, int]:
        """Return the leases of other members with this name, and the versions of their records."""
        return {
            name: record.version
            for name, record in leases.items()
            if member_of(name, self._topic, self._subscription) not in (None, self._store.session)
            and Holder.parse(holder_of(record)).consumer == self._name
        }

    def _require_type(self, leases: HeldLeases) -> None:
        """Raise Conflict if another process uses the subscription with another type."""
        require_one_type(self._topic, self._subscription, self._name, self.subscription_type, leases)

    async def _look(self, leases: HeldLeases) -> None:
        if not self._seen.done():
            # Of two processes that register at the same time, each may have looked before the other one registered.
            try:
                self._require_type(leases)
            except Conflict as error:
                self._seen.set_exception(error)  # the caller of ``start`` leaves
                raise
        view = view_of(self._topic, self._subscription, self._store.session, leases, self.subscription_type)
        if self._store.session not in view.members:
            # Lost, or broken by a later process with a consumer of this name; only the record shows that.
            raise LeaseLost(self._lease)
        self._show(view)
        if not self._seen.done():
            self._seen.set_result(None)

    def _show(self, view: SharingView | None) -> None:
        self.view = view
        for changed in tuple(self.changed):
            changed()


def require_one_type(
    topic: TopicName, subscription: str, name: str | None, subscription_type: str, leases: HeldLeases
) -> None:
    """Raise Conflict if a lease shows another type; leases of consumers with this ``name`` are about to be replaced."""
    for lease, record in leases.items():
        holder = Holder.parse(holder_of(record))
        is_namesake = name is not None and holder.consumer == name
        if not is_namesake and is_lease_of(lease, topic, subscription):
            require_type(subscription, subscription_type, holder)


class SubscriptionShares:
    """The shares of a host: one for each topic and subscription with consumers here that share it."""

    def __init__(self, store: IMetadataStore, environment: Environment, process: str) -> None:
        self._store = store
        self._environment = environment
        self._process = process
        self._opened: dict[tuple[TopicName, str], SubscriptionShare] = {}
        self._changing: KeyedLock[tuple[TopicName, str]] = KeyedLock()
        self._leaving = RetryingTasks(environment, lambda _: None)

    async def join(
        self,
        topic: TopicName,
        subscription: str,
        name: str | None,
        subscription_type: str,
        changed: Callable[[], None],
    ) -> SubscriptionShare:
        """
        Register this process, unless it is; ``changed`` is called whenever the share's view may have changed.

        If it fails or is cancelled, call ``leave``.

        :raises Conflict: a consumer, in this process or in another one, uses the subscription with another type.
        """
        key = topic, subscription
        async with self._changing.hold(key):
            share = self._opened.get(key)
            if share is None:
                share = SubscriptionShare(
                    self._store, self._environment, self._process, topic, subscription, name, subscription_type
                )
                self._opened[key] = share
            used = Holder("", self._process, self._store.session, share.subscription_type)
            require_type(subscription, subscription_type, used)
            share.changed[changed] = None
            await share.start()
            return share

    async def require_one_type(
        self, topic: TopicName, subscription: str, name: str | None, subscription_type: str
    ) -> None:
        """Raise Conflict if a process uses the subscription with another type, for a consumer that does not share."""
        leases = await held_leases(self._store, dispatching_leases(topic, subscription))
        require_one_type(topic, subscription, name, subscription_type, leases)

    async def leave(self, topic: TopicName, subscription: str, changed: Callable[[], None]) -> None:
        """Leave after the last consumer; without the store, later. A call for a consumer that did not join is fine."""
        key = topic, subscription
        try:
            await self._leave(key, changed)
        except (Unavailable, OutcomeUnknown, asyncio.CancelledError) as error:
            # Otherwise other processes would leave segments to this one for the rest of its life.
            self._leaving.start(partial(self._leave, key, changed))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def close(self) -> None:
        """Stop everything; the leases end with the session."""
        await self._leaving.stop()
        for share in tuple(self._opened.values()):
            await share.abandon()

    async def _leave(self, key: tuple[TopicName, str], changed: Callable[[], None]) -> None:
        async with self._changing.hold(key):
            share = self._opened.get(key)
            if share is None:
                return
            share.changed.pop(changed, None)
            if share.changed:
                return  # another consumer is here, or came while this one could not leave
            with suppress(Closed):
                await share.stop()
            del self._opened[key]
