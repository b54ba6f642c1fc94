"""The dispatches of a host: one for each segment and subscription that has consumers in this process."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from logging import INFO

from txnframework.broker.coordination import Holder
from txnframework.broker.dispatch.attachments import Attachment, SubscriptionRef
from txnframework.broker.dispatch.consumers import AttachRequest, Listener
from txnframework.broker.dispatch.delivery_counts import DeliveryCountCache
from txnframework.broker.dispatch.segment_dispatch import DispatchParts, SegmentDispatch
from txnframework.broker.dispatch.subscription_types import require_type
from txnframework.broker.events import Event, log_event
from txnframework.broker.lease_names import dispatching_lease
from txnframework.broker.stores import HostContext
from txnframework.errors import (
    Closed,
    LeaseHeld,
    LedgerNotFound,
    OutcomeUnknown,
    SubscriptionOwnedElsewhere,
    TxnFrameworkError,
)
from txnframework.interfaces import ILease
from txnframework.model.positions import Position
from txnframework.runtime.concurrency import KeyedLock, for_each
from txnframework.runtime.steps import Steps
from txnframework.runtime.tasks import RetryingTasks

REPLACEMENTS_MAX = 10
"""How often a consumer takes the lease from others of its name, which may race for it, before it waits its turn."""
HOLDERS_MAX = 1_000
"""The most leases whose holders are remembered, for the log."""
CLOSED_TOGETHER_MAX = 64
"""The most dispatches that a host closes at the same time."""


class Dispatches:
    """Opens a dispatch, with its lease, for the first consumer, and closes the dispatch after the last one."""

    def __init__(
        self,
        context: HostContext,
        parts: Callable[[SubscriptionRef], Awaitable[DispatchParts]],
        steps: Steps,
    ) -> None:
        self._steps = steps
        self._releasing = RetryingTasks(context.environment, lambda _: None)
        self._store = context.metadata
        self._process = context.process
        self._parts = parts
        # The processes that held the leases which were refused here, until this process holds them.
        self._holders: OrderedDict[tuple[str, str], Holder] = OrderedDict()
        self._remembered = DeliveryCountCache(context.config.subscriptions.redelivery_counts_max)
        self._open: dict[tuple[str, str], SegmentDispatch] = {}
        # Changes of a dispatch are serialized: a consumer must not attach to a dispatch that is being closed.
        self._changing: KeyedLock[tuple[str, str]] = KeyedLock()
        self._closed = False

    async def attach(
        self,
        ref: SubscriptionRef,
        request: AttachRequest,
        listener: Listener,
        got: Callable[[Attachment], None] = lambda _: None,
    ) -> Attachment:
        """
        Attach a consumer; ``got`` is called with its attachment before anything is delivered.

        :raises SubscriptionOwnedElsewhere: another process dispatches this subscription on this segment.
        :raises SubscriptionNotFound: the subscription does not exist.
        :raises LedgerNotFound: the segment does not exist, or belongs to another life of the topic.
        :raises ConsumerBusy: the type allows one consumer only, and the subscription has one.
        :raises LeaseLost: the lease was lost before the consumer was attached.
        :raises Conflict: a consumer, in this process or in another one, uses the subscription with another type.
        :raises UnknownPlugin: no installed plugin provides the subscription type.
        """
        return await self._steps.finish(
            lambda: self._attach(ref, request, listener, got), (ref.key,), undo=self._undo_attach
        )

    async def detach(self, attached: Attachment, unseen: frozenset[Position]) -> None:
        """Detach a consumer; its unacknowledged messages go to others, those in ``unseen`` as if never delivered."""
        await self._steps.finish(lambda: self._detach(attached, unseen), (attached.ref.key,))

    def segments_of(self, subscription: str) -> frozenset[str]:
        """Return the segments that this process dispatches to a subscription."""
        return frozenset(key[0] for key, one in self._open.items() if key[1] == subscription and one.ended is None)

    async def close(self) -> None:
        """Close every dispatch, and notify its consumers."""
        self._closed = True
        await for_each(tuple(self._open.items()), self._close_in_turn, CLOSED_TOGETHER_MAX, despite_errors=True)
        await self._releasing.stop()  # leases that were not released end with the session

    async def _undo_attach(self, attached: Attachment) -> None:
        """Detach a consumer of a cancelled caller, which has received nothing."""
        await self._detach(attached, attached.delivered())

    async def _attach(
        self, ref: SubscriptionRef, request: AttachRequest, listener: Listener, got: Callable[[Attachment], None]
    ) -> Attachment:
        key = ref.key
        async with self._changing.hold(key):
            if self._closed:
                raise Closed("the host was closed")
            dispatch = self._open.get(key)
            if dispatch is not None and (dispatch.ended is not None or dispatch.is_before(ref.life)):
                await self._close(key, dispatch)
                dispatch = None
            if dispatch is None:
                dispatch = await self._begin(ref, request)
                if self._closed:
                    # ``close`` did not find it yet.
                    await self._end(key, dispatch)
                    raise Closed("the host was closed")
                self._open[key] = dispatch
            else:
                # Messages that were acknowledged elsewhere before now must not be delivered to it, and a watch may be
                # late.
                await dispatch.refresh()
            try:
                if not dispatch.is_of(ref.life):
                    raise LedgerNotFound(ref.segment)
                used = Holder("", self._process, self._store.session, dispatch.subscription_type)
                require_type(ref.subscription, ref.subscription_type, used)
                if request.counts_durably:
                    await dispatch.count_durably()
                attached = Attachment(ref, dispatch, dispatch.attach(request, listener))
                got(attached)
                return attached
            finally:
                if not dispatch.consumers.by_id:
                    await self._close(key, dispatch)

    async def _detach(self, attached: Attachment, unseen: frozenset[Position]) -> None:
        key = attached.ref.key
        async with self._changing.hold(key):
            try:
                await attached.detach(unseen)
            finally:
                if not attached.dispatch.consumers.by_id:
                    await self._close(key, attached.dispatch)

    async def _begin(self, ref: SubscriptionRef, request: AttachRequest) -> SegmentDispatch:
        parts = await self._parts(ref)
        key = ref.key
        try:
            lease = await self._hold(ref, request)
        except LeaseHeld as held:
            self._note_holder(key, held)
            require_type(ref.subscription, ref.subscription_type, Holder.parse(held.holder))
            raise SubscriptionOwnedElsewhere(ref.segment, ref.subscription, held.holder) from None
        except (OutcomeUnknown, asyncio.CancelledError):
            self._releasing.start(partial(self._release_unused, key))
            raise
        earlier = self._remembered.take(key)
        dispatch = SegmentDispatch(parts, lease, earlier, may_be_replaced=request.named)
        try:
            await dispatch.start()
        except BaseException:
            self._remembered.keep(key, earlier)
            await self._end(key, dispatch)
            raise
        self._log_begin(ref, request)
        return dispatch

    def _note_holder(self, key: tuple[str, str], held: LeaseHeld) -> None:
        self._holders.pop(key, None)
        self._holders[key] = Holder.parse(held.holder)
        if len(self._holders) > HOLDERS_MAX:
            self._holders.popitem(last=False)

    def _log_begin(self, ref: SubscriptionRef, request: AttachRequest) -> None:
        """Log that this process dispatches a segment which another process dispatched, or shares with others."""
        earlier = self._holders.pop(ref.key, None)
        facts = {"segment": ref.segment, "subscription": ref.subscription, "process": self._process}
        sentence = f"{self._process} dispatches {ref.segment} to {ref.subscription}"
        if earlier is not None:
            name = earlier.process or earlier.session
            log_event(INFO, Event.SEGMENT_TAKEN_OVER, f"{sentence}, after {name}", **facts, earlier=name)
        elif request.shares:
            log_event(INFO, Event.SEGMENT_TAKEN, f"{sentence}, which it shares with others", **facts)

    async def _hold(self, ref: SubscriptionRef, request: AttachRequest) -> ILease:
        """
        Take the lease; replace an earlier consumer of the same name if ``request`` says so.

        Safety does not depend on the lease: an earlier consumer that is alive can only fail. It detects from the
        lease's record that it was replaced. A replaced consumer does not replace its successor. So of several live
        consumers, the latest one dispatches. One that was replaced before may take the broken lease in between; then it
        is replaced again.
        """
        key, session = ref.key, self._store.session
        lease = dispatching_lease(*key)
        holder = str(Holder(request.name if request.named else "", self._process, session, ref.subscription_type))
        for _ in range(REPLACEMENTS_MAX):
            try:
                return await self._store.acquire_lease(lease, holder)
            except LeaseHeld as held:
                earlier = Holder.parse(held.holder)
                if earlier.session == session:
                    # A leftover of this process: the reply to acquiring or releasing it was lost, so it is released
                    # now.
                    await self._release_held(lease, held.holder)
                elif request.replaces and earlier.consumer == request.name:
                    record = await self._store.get(held.key)
                    if record is not None:
                        self._note_holder(key, held)
                        await self._store.break_lease(lease, record.version)
                else:
                    raise
        return await self._store.acquire_lease(lease, holder)

    async def _release_held(self, lease: str, holder: str) -> None:
        """Release a lease that this process may hold under this name; acquiring it again shows whether it does."""
        await (await self._store.acquire_lease(lease, holder)).release()

    async def _close_in_turn(self, opened: tuple[tuple[str, str], SegmentDispatch]) -> None:
        async with self._changing.hold(opened[0]):
            await self._close(*opened)

    async def _close(self, key: tuple[str, str], dispatch: SegmentDispatch) -> None:
        if self._open.get(key) is dispatch:
            del self._open[key]
        await self._end(key, dispatch)
        self._remembered.keep(key, dispatch.redeliveries)

    async def _end(self, key: tuple[str, str], dispatch: SegmentDispatch) -> None:
        try:
            await dispatch.close()
        except (TxnFrameworkError, asyncio.CancelledError) as error:
            # Otherwise other processes would wait for the lease for the life of this process.
            self._releasing.start(partial(self._release_unused, key))
            if not isinstance(error, TxnFrameworkError):
                raise

    async def _release_unused(self, key: tuple[str, str]) -> None:
        """Release a lease that this process may hold, unless a new dispatch uses it."""
        async with self._changing.hold(key):
            if key in self._open or self._closed:
                return
            lease, session = dispatching_lease(*key), self._store.session
            try:
                await self._release_held(lease, str(Holder("", self._process, session)))
            except LeaseHeld as held:
                # It is held under the name of the consumer that it was taken for, or by another process.
                if Holder.parse(held.holder).session == session:
                    with suppress(LeaseHeld):
                        await self._release_held(lease, held.holder)
