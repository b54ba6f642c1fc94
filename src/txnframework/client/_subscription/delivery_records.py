"""Records of deliveries that are stored before a consumer receives the messages."""

from __future__ import annotations

import asyncio

from txnframework.broker import Host, NumberedDelivery, first_completed
from txnframework.client._base import backoff_of, client_closed
from txnframework.client._subscription.inbox import Source
from txnframework.client._subscription.segments import FollowedSegments
from txnframework.errors import OutcomeUnknown, ReceiveTimeout, Unavailable
from txnframework.runtime.deadline import Deadline


class DeliveryRecorder:
    """
    Records deliveries before they are received, one record at a time.

    A record that takes too long is left to the host, so that a later call need not begin again.
    """

    def __init__(self, host: Host, segments: FollowedSegments) -> None:
        self._host = host
        self._segments = segments
        self._recording: asyncio.Task[None] | None = None

    async def record(
        self, feed: Source, deliveries: tuple[NumberedDelivery, ...], timeout_ms: int | None, deadline: Deadline | None
    ) -> None:
        """
        Record deliveries, or wait for the record of an earlier call; then look again at what may be received.

        :raises ReceiveTimeout: the deliveries were not recorded in time.
        """
        environment = self._host.environment
        if self._recording is None:
            given = sum(one.given for one in self._segments.feeds.values())
            self._recording = self._host.steps.begin(lambda: feed.record(deliveries, alone=not given))
            # Its error is raised by the next call, if there is one.
            self._recording.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        recording = self._recording
        wait = asyncio.wait({recording})
        if deadline is None:
            await wait
        else:
            await first_completed(wait, environment.sleep(max(deadline.left_ms, 1)))
        if timeout_ms is not None and not recording.done():
            raise ReceiveTimeout(timeout_ms)
        self._recording = None
        if recording.cancelled():
            raise client_closed(self._host)  # only closing the client cancels the step
        error = recording.exception()
        if isinstance(error, Unavailable | OutcomeUnknown):
            delay_ms = backoff_of(environment, self._host.config.client).delay_ms(1)
            await environment.sleep(delay_ms if deadline is None else min(delay_ms, deadline.left_ms))
        elif error is not None:
            raise error
