"""Trimming: the topic as far as it may be, then the sidecar as far as the topic no longer refers to it."""

from __future__ import annotations

from txnframework.model import Swept
from txnframework_sidecar.ledgers import TopicLedgers
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.settling import Settling


class Retaining:
    """Removes what nobody can read any more; any process may, at any time."""

    def __init__(self, ledgers: TopicLedgers, settling: Settling, options: SidecarOptions) -> None:
        self._ledgers = ledgers
        self._settling = settling
        self._options = options

    async def trim(self, ledger_id: int) -> Swept:
        """
        Trim the ledgers of the topic below one, then those of the sidecar.

        The topic first: killed between the two, the sidecar keeps what nobody refers to until the next time. Before it,
        the commits whose markers go are noted: whoever ended one of them again would find neither marker nor note.
        """
        topic = self._ledgers.topic
        tail = await self._ledgers.read_topic()
        below = min(ledger_id, tail.open_ledger_id)
        (before,) = await topic.ledgers(-1, 1)
        if below > before.ledger_id:
            await self._settling.note_before(below)
        first = await topic.trim(below, frozenset())
        self._ledgers.stream.without(first)
        await self._trim_sidecar()
        return Swept(int(first > before.ledger_id), int(first < below))

    async def _trim_sidecar(self) -> None:
        sidecar, tail = await self._ledgers.find_sidecar(), await self._ledgers.read_sidecar()
        if sidecar is None or tail is None:
            return
        if tail.last_confirmed.entry_id + 1 >= self._options.sidecar_ledger_entries_max:
            tail = await sidecar.roll()
        # The sidecar is read first, then the topic: the markers of everything that is noted here stood before it was,
        # and are found; what is not noted here is kept. The other way round, a commit between the two would be missed.
        first_open = self._ledgers.index.first_open_ledger()
        await self._ledgers.read_topic()
        bounds = (tail.open_ledger_id, first_open, self._ledgers.stream.references.first_ledger())
        below = min(bound for bound in bounds if bound is not None)
        first = await sidecar.trim(below, self._ledgers.index.aborted_before(below))
        self._ledgers.sidecar_trimmed(first)
