"""One run of compaction."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnframework.environment import Environment
from txnframework.errors import EntryTrimmed, LedgerClosed
from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, EntryRange, Limit, Position
from txnframework_sidecar.compaction.compacted import Compacted
from txnframework_sidecar.compaction.format import TOKEN_BITS, Kind, Line, decode_line, encode_line, encode_runs
from txnframework_sidecar.ledgers import TopicLedgers
from txnframework_sidecar.model.markers import Marker, read_topic_entry
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.resolving import Resolving

PAGE = Limit(1_000)
_APPEND_BYTES = 1024 * 1024


@dataclass
class _Run:
    """A run in progress; ``upto`` is the last position of the topic that it has processed."""

    ledger_id: int
    token: int
    upto: Position
    kept: int = 0
    waiting: list[Append] = field(default_factory=list)


class Compacting:
    """
    Rewrites the messages that markers list. Any process may do this, and several may do it concurrently.

    A run takes a ledger of its own by closing the previous one. The previous run can then append nothing more, its
    final entry included, so no two finished runs cover the same markers. A run that crashes at any step does not count,
    and is trimmed with its ledger. Readers use the sidecar until the run is finished, and afterwards as long as the
    sidecar is not trimmed.

    Messages in a large transaction's own ledger stay there. They are stored together, and the whole ledger is deleted
    when the topic no longer refers to it.
    """

    def __init__(
        self,
        ledgers: TopicLedgers,
        compacted: Compacted,
        resolving: Resolving,
        environment: Environment,
        options: SidecarOptions,
    ) -> None:
        self._ledgers = ledgers
        self._compacted = compacted
        self._resolving = resolving
        self._environment = environment
        self._options = options

    async def run(self) -> None:
        """Compact the next markers after those compacted already, unless another process does."""
        ledger = await self._compacted.ledger()
        ledger_id = (await ledger.roll()).open_ledger_id
        # The contents of earlier ledgers are final now.
        await self._compacted.refresh()
        token = self._environment.random_bits(TOKEN_BITS)
        run = _Run(ledger_id, token, self._compacted.upto)
        try:
            await ledger.append((encode_line(Line(Kind.CLAIM, token, run.upto)),), ledger_id)
            (first,) = await ledger.read(EntryRange(Position(ledger_id, -1), Position(ledger_id, 0)), Limit(1))
            if decode_line(first, ledger.name).token != token:
                return
            await self._keep(run, ledger)
            done = encode_line(Line(Kind.DONE, token, run.upto, encode_runs(self._compacted.runs)))
            await ledger.append((*run.waiting, done), ledger_id)
        except (LedgerClosed, EntryTrimmed):
            return  # another process started a later run, or trimmed the data being read
        await self._compacted.refresh()

    async def _keep(self, run: _Run, ledger: IManagedLedger) -> None:
        """Write the messages of the next markers; at the end, ``upto`` is never within a commit."""
        topic, end = self._ledgers.topic, self._ledgers.stream.upto
        (first, *_) = await topic.ledgers(-1, 1)
        run.upto = max(run.upto, Position(first.ledger_id, -1))
        while run.upto < end:
            page = await topic.read(EntryRange(run.upto, end), PAGE)
            for entry in page:
                marker = read_topic_entry(entry, topic.name)
                if marker is not None and entry.position not in self._ledgers.stream.repeated:
                    if not _belongs(run, marker, self._options.compaction_entries_max):
                        return
                    await self._write(run, ledger, marker, entry.position)
                run.upto = entry.position
            if not page:
                return

    async def _write(self, run: _Run, ledger: IManagedLedger, marker: Marker, position: Position) -> None:
        if marker.part.own or not marker.part.spans:
            return
        entry = await self._resolving.from_sidecar(marker, position)
        run.waiting.append(encode_line(Line(Kind.KEPT, run.token, position, entry.data)))
        run.kept += 1
        if sum(len(one.data) for one in run.waiting) >= _APPEND_BYTES:
            await ledger.append(tuple(run.waiting), run.ledger_id)
            run.waiting.clear()


def _belongs(run: _Run, marker: Marker, entries_max: int) -> bool:
    """Return whether a marker belongs to this run: the run is bounded, but never ends within a commit."""
    return marker.number > 0 or run.kept < entries_max
