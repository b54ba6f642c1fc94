"""The state size for ``pipeline status``: ``pipeline run`` stores a note in the metadata store after each batch.

Only Spark knows the state, and status runs without Spark. The note is not part of the batch's transaction: after a kill
between the batch and its note, the note is one batch old.
"""

from __future__ import annotations

import contextlib
from typing import Final, Literal

import msgspec

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.interfaces import IMetadataStore
from txnframework.model.metadata import Expect, Key, Put
from txnframework.model.paths import escape
from txnframework_spark.progress import StateProgress

_ROOT: Final = "/spark-pipeline"


class StateNote(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a pipeline after ``batch``; ``late_rows``: dropped since the pipeline began, the last of them in
    ``late_batch``.
    """

    format: Literal[1] = 1
    batch: int
    watermark: str | None
    rows: int
    bytes: int
    late_rows: int = 0
    late_batch: int | None = None


def after(before: StateNote | None, batch: int, found: StateProgress) -> StateNote:
    """Return the note after a batch; ``before``: the stored note."""
    late_rows = 0 if before is None else before.late_rows
    late_batch = None if before is None else before.late_batch
    return StateNote(
        batch=batch,
        watermark=found.watermark,
        rows=found.rows,
        bytes=found.bytes,
        late_rows=late_rows + found.late_rows,
        late_batch=batch if found.late_rows else late_batch,
    )


async def load_note(store: IMetadataStore, pipeline: str) -> StateNote | None:
    """Return the note of a pipeline; None if there is none in a format that this release can read."""
    found = await store.get(_key(pipeline))
    if found is None:
        return None
    try:
        return msgspec.json.decode(found.value, type=StateNote)
    except msgspec.DecodeError:
        return None


async def keep_note(store: IMetadataStore, pipeline: str, note: StateNote) -> None:
    """Store the note; if the store is unavailable, the note is dropped and the next batch writes another."""
    with contextlib.suppress(Unavailable, OutcomeUnknown):
        await store.put(Put(_key(pipeline), msgspec.json.encode(note), Expect.ANY))


def _key(pipeline: str) -> Key:
    return Key(f"{_ROOT}/{escape(pipeline)}")
