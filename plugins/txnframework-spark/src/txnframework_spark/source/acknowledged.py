"""Detection of queries whose ``groupId`` no sink acknowledges: our sink does, others only if they are told to.

Without acknowledgments nothing fails at first, because the checkpoint advances. But the subscription's lag grows,
retention never trims, and a lost checkpoint repeats everything.

A read task registers the range that the batch will acknowledge. Spark asks for the end of the next batch only when the
previous batch is done, and passes the end of that one. So a registered range that ends there or before, and that the
cursor has not passed, was not acknowledged by its sink. The following cases are excluded:

* A batch that is replayed, or planned from an older checkpoint: the cursor has passed it.
* A batch without data, and one whose tasks Spark skipped because their output was not needed: it registered nothing.
* A batch of another run, or of another incarnation of the cursor: it was fenced, or a seek made it obsolete.
* A single range, registered by a task that Spark had abandoned, too late for the commit of its own batch: the next
  commit passes it. So one range only logs a warning, and two raise an error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from txnframework.broker import Host
from txnframework.errors import LedgerNotFound, SubscriptionNotFound, TopicNotFound
from txnframework.model.cursor import Cursor
from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework.model.records import RegistrationDocument
from txnframework_spark.errors import NotAcknowledged
from txnframework_spark.microbatch.registration import load_subscription
from txnframework_spark.source.offsets import Frontier, Offset, SegmentOffset
from txnframework_spark.source.takeover import Holding

_LOG: Final = logging.getLogger("txnframework_spark.source")
_WARNED_FROM, _REFUSED_FROM = 1, 2


@dataclass(slots=True)
class Acknowledgments:
    """Checks whether each finished batch was acknowledged, until one was; a sink that acknowledges once always does.

    ``allowed``: continue without acknowledgments. ``missing``: the number of unacknowledged batches by topic.
    """

    host: Host
    allowed: bool
    missing: dict[str, int] = field(default_factory=dict)
    _looked_at: Frontier | None = None
    _found: set[TopicName] = field(default_factory=set)

    async def check(self, start: Offset, holdings: Iterable[Holding]) -> None:
        """
        Check whether the data before ``start``, the end of a finished batch, is acknowledged.

        :param holdings: the subscriptions of topics that exist.
        :raises NotAcknowledged: it is not acknowledged, and that is not ``allowed``.
        """
        if start.initial or start.frontier == self._looked_at:
            return
        for holding in holdings:
            if holding.topic not in self._found and str(holding.topic) in start.frontier:
                # Deleted since its layout was read: the next batch's planning reports that.
                with contextlib.suppress(SubscriptionNotFound, TopicNotFound, LedgerNotFound):
                    await self._check(holding, start.frontier[str(holding.topic)])
        self._looked_at = start.frontier

    async def _check(self, holding: Holding, held: Mapping[str, SegmentOffset]) -> None:
        topic = str(holding.topic)
        _, record = await load_subscription(self.host.metadata, topic, holding.subscription)
        if record.epoch != holding.epoch:
            # Taken over by a newer run: the sink detects that and stops this run.
            return
        done = [one for one in record.registrations if _ends_by(one, held)]
        mine = [one for one in done if one.epoch == holding.epoch]
        if not mine:
            return
        # Finished segments are not checked: they may have been removed.
        cursors = {name: await self._cursor(holding, name) for name in held if any(name in one.end for one in done)}
        left = [one for one in done if _is_left(one, cursors)]
        if not any(one in left for one in mine):
            self._found.add(holding.topic)
            self.missing.pop(topic, None)
            return
        self.missing[topic] = len(left)
        error = NotAcknowledged(topic, holding.subscription, len(left))
        if len(left) >= _REFUSED_FROM and not self.allowed:
            raise error
        if len(mine) == _WARNED_FROM:
            _LOG.warning("%s", error)

    async def _cursor(self, holding: Holding, name: str) -> Cursor:
        found = await self.host.subscription(str(holding.topic), holding.subscription, name)
        # Committed acknowledgments may not have reached the cursor yet.
        await found.pending_acks.recover()
        return await found.cursor.load()


def _ends_by(known: RegistrationDocument, segments: Mapping[str, SegmentOffset]) -> bool:
    """Return whether the batch ends at or before the offsets of these segments; a missing segment was finished."""
    return all(name not in segments or Position.parse(end) <= segments[name].at for name, end in known.end.items())


def _is_left(known: RegistrationDocument, cursors: Mapping[str, Cursor]) -> bool:
    """Return whether a cursor has not passed the batch."""
    return any(
        known.incarnations.get(name) == cursor.incarnation
        and Position.parse(known.start[name]) < Position.parse(known.end[name])
        and cursor.mark_delete < Position.parse(known.end[name])
        for name, cursor in cursors.items()
        if name in known.end
    )
