"""The two records of a copy, and how a run of it keeps the other runs from changing anything."""

from __future__ import annotations

import msgspec

from txnframework.broker.coordination import expected_version
from txnframework.errors import InvalidInput, Unavailable, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import Expect, Key, Put, paths, records
from txnframework.model.metadata import Expected
from txnframework.model.records import CopiedRecord, CopyRecord, Document

REPLACED = (
    "another process runs this copy, or has completed it, or has opened the source again; this process has stopped:"
    " repeat the command to see what is left to do"
)


class CopyClaim:
    """
    What one run of a copy knows of its records: ``/copy`` in the target and ``/copied`` in the source.

    A run that takes a copy over raises the versions of both. Every note is a compare-and-set from the version that this
    run wrote. So a run whose process was suspended, and was replaced meanwhile, stops at its next note or look. Opening
    the source again raises the version of ``/copied``.
    """

    def __init__(self, source: IMetadataStore, target: IMetadataStore) -> None:
        self._source = source
        self._target = target
        self._copy: Expected = Expect.ABSENT
        self._copied: Expected = Expect.ABSENT

    async def begun(self) -> CopyRecord | None:
        """Return the record of the copy in the target, or None; the claim continues from its version."""
        found = await self._target.get(paths.copy_key())
        self._copy = expected_version(found)
        return None if found is None else records.decode(CopyRecord, found)

    async def take(self, record: CopyRecord, *, is_shared: bool) -> CopyRecord:
        """
        Begin the copy, or take it over from the run that was interrupted; both records are written.

        :raises InvalidInput: the source was copied to other stores since.
        """
        record = await self.note(record)
        found = await self._source.get(paths.copied_key())
        self._copied = expected_version(found)
        former = None if found is None else records.decode(CopiedRecord, found).to
        if record.step != "begun" and former != record.to:
            raise InvalidInput(f"the source {record.source!r} was copied again since this copy began: to {former!r}")
        await self._note_source(CopiedRecord(to=record.to, is_shared=is_shared))
        return record

    async def note(self, record: CopyRecord, **changes: str) -> CopyRecord:
        """
        Store the record of the copy, with changes.

        :raises Unavailable: another run has changed it.
        """
        noted = msgspec.structs.replace(record, **changes)
        self._copy = await _put(self._target, paths.copy_key(), noted, self._copy)
        return noted

    async def finish(self, record: CopyRecord, *, is_shared: bool) -> None:
        """
        Note in the source that the copy may be used from now on.

        :raises Unavailable: another run has changed one of the records, or the source was opened again.
        """
        await self.note(record)
        await self._note_source(CopiedRecord(to=record.to, is_shared=is_shared, is_finished=True))

    async def require(self) -> None:
        """
        Refuse to go on if another run has taken over.

        :raises Unavailable: it has.
        """
        if expected_version(await self._target.get(paths.copy_key())) != self._copy:
            raise Unavailable(REPLACED)

    async def _note_source(self, noted: CopiedRecord) -> None:
        self._copied = await _put(self._source, paths.copied_key(), noted, self._copied)


async def _put(store: IMetadataStore, key: Key, noted: Document, expected: Expected) -> int:
    try:
        return await store.put(Put(key, records.encode(noted), expected))
    except VersionMismatch as mismatch:
        raise Unavailable(REPLACED) from mismatch
