"""Whether anybody acknowledges what a query reads with ``groupId``: our sink does, another one only if it is told to.

Without it nothing shows at first: the checkpoint goes on. But the subscription's lag grows, retention never trims,
and a lost checkpoint repeats everything.

How it is known. A read task registers what the batch will have acknowledged. Spark asks how far the next batch reads
only when the batch before it is done, and says where that one ended. So a registered range that ends there or before,
and that the cursor has not passed, was written by a sink that acknowledged nothing. What it never takes for one:

* A batch that is replayed, or planned from an older checkpoint: the cursor has passed it.
* A batch without data, and one whose tasks Spark left out as nothing of them was needed: it registered nothing.
* Another run's batch, and one that lies under another incarnation of the cursor: it is fenced, or was sought away from.
* A single range that a task registered which Spark had given up, and which came too late for the commit of its own
  batch: the next commit passes it. So one range is only worth a warning, and two of them are an error.
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
    """Looks after each batch whether it was acknowledged, until one was: a sink that does it once always does.

    ``allowed``: go on where nobody does. ``missing``: how many batches nobody has acknowledged, by topic.
    """

    host: Host
    allowed: bool
    missing: dict[str, int] = field(default_factory=dict)
    _looked_at: Frontier | None = None
    _found: set[TopicName] = field(default_factory=set)

    async def check(self, start: Offset, holdings: Iterable[Holding]) -> None:
        """
        Look whether what lies before ``start``, where a finished batch ended, is acknowledged.

        ``holdings``: of topics that are there.

        :raises NotAcknowledged: it is not, and that is not ``allowed``.
        """
        if start.initial or start.frontier == self._looked_at:
            return
        for holding in holdings:
            if holding.topic not in self._found and str(holding.topic) in start.frontier:
                # Deleted since its layout was read: that is told when the next batch is planned.
                with contextlib.suppress(SubscriptionNotFound, TopicNotFound, LedgerNotFound):
                    await self._check(holding, start.frontier[str(holding.topic)])
        self._looked_at = start.frontier

    async def _check(self, holding: Holding, held: Mapping[str, SegmentOffset]) -> None:
        topic = str(holding.topic)
        _, record = await load_subscription(self.host.metadata, topic, holding.subscription)
        if record.epoch != holding.epoch:
            # Taken over by a newer run: the sink finds that out and stops this one.
            return
        done = [one for one in record.registrations if _ends_by(one, held)]
        mine = [one for one in done if one.epoch == holding.epoch]
        if not mine:
            return
        # A segment that was finished is not asked: it may have been removed.
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
        # What is committed may not have reached the cursor yet.
        await found.pending_acks.recover()
        return await found.cursor.load()


def _ends_by(known: RegistrationDocument, segments: Mapping[str, SegmentOffset]) -> bool:
    """Whether the batch ends where these segments are read to, or before; one that is not there was finished."""
    return all(name not in segments or Position.parse(end) <= segments[name].at for name, end in known.end.items())


def _is_left(known: RegistrationDocument, cursors: Mapping[str, Cursor]) -> bool:
    """Whether a cursor has not passed the batch."""
    return any(
        known.incarnations.get(name) == cursor.incarnation
        and Position.parse(known.start[name]) < Position.parse(known.end[name])
        and cursor.mark_delete < Position.parse(known.end[name])
        for name, cursor in cursors.items()
        if name in known.end
    )
