"""A pipeline's stores, read without Spark: existence of its topics, progress, and open transactions.

Only Spark knows the size of a query's state. So ``pipeline run`` stores a note of it in the metadata store after each
batch, for ``pipeline status``. The note is not part of the batch's transaction: after a kill between the batch and its
note, the note is one batch old.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec

import txnframework
from txnframework.broker import SegmentLag
from txnframework.client import Client
from txnframework.config import load_config
from txnframework.errors import (
    InvalidTransactionState,
    OutcomeUnknown,
    SubscriptionNotFound,
    TransactionNotFound,
    Unavailable,
    UnknownFormat,
)
from txnframework.interfaces import IMetadataStore
from txnframework.model.metadata import Expect, Key, Put
from txnframework.model.paths import escape
from txnframework.model.transactions import Action, Application, End, State, Transaction
from txnframework_spark.microbatch.batch import application_coordinator
from txnframework_spark.options.parser import StoreOptions, parse_topic
from txnframework_spark.pipeline.description import Pipeline
from txnframework_spark.pipeline.loader import parsed_source, store_options
from txnframework_spark.progress import StateProgress

FORMAT: Final = 1
"""The format version of a note."""

_ROOT: Final = "/spark-pipeline"


class _Head(msgspec.Struct):
    """The part of a note that all versions have."""

    format: int


class StateNote(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a pipeline after ``batch``; ``late_rows``: dropped since the pipeline began, the last of them in
    ``late_batch``.
    """

    format: Literal[1] = FORMAT
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
    """
    Return the note of a pipeline; None if there is none, or if it is damaged: the next batch writes another.

    :raises UnknownFormat: a later release wrote the note.
    """
    found = await store.get(_key(pipeline))
    return None if found is None else decode_note(found.value, pipeline)


def decode_note(data: bytes, pipeline: str) -> StateNote | None:
    """
    Return the note that ``encode_note`` wrote; None if it is damaged.

    :raises UnknownFormat: a later release wrote it.
    """
    try:
        version = msgspec.json.decode(data, type=_Head).format
        if version != FORMAT:
            raise UnknownFormat(f"the state note of pipeline {pipeline!r}", version)
        return msgspec.json.decode(data, type=StateNote)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def encode_note(note: StateNote) -> bytes:
    """Return the bytes that are stored."""
    return msgspec.json.encode(note)


async def store_note(store: IMetadataStore, pipeline: str, note: StateNote) -> None:
    """Store the note; if the store is unavailable, the note is dropped and the next batch writes another."""
    with contextlib.suppress(Unavailable, OutcomeUnknown):
        await store.put(Put(_key(pipeline), encode_note(note), Expect.ANY))


def _key(pipeline: str) -> Key:
    return Key(f"{_ROOT}/{escape(pipeline)}")


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A topic as a source of the pipeline reads it.

    ``lag``: by segment; None without a subscription, because only Spark's checkpoint knows it. ``begun``: the
    subscription exists.
    """

    view: str
    topic: str
    group_id: str | None
    begun: bool
    lag: tuple[SegmentLag, ...] | None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The progress of a pipeline.

    ``open``: the transaction of the current batch, or of an interrupted one. ``state``: the plan's state, if it keeps
    state and ``pipeline run`` has run it.
    """

    application: Application | None
    open: Transaction | None
    now_ms: int
    sources: tuple[SourceStatus, ...]
    state: StateNote | None = None


async def check_topics(pipeline: Pipeline) -> tuple[SourceStatus, ...]:
    """Return the topics that are read, after a check that all named topics exist, and that the note can be read.

    Topics that a pattern or a row names are not known yet, and are not checked. A note of a later release is refused
    here, before the first batch, because ``pipeline run`` would replace it.

    :raises TopicNotFound: a topic that the file names, to be read or written, does not exist.
    :raises UnknownFormat: a later release wrote the note.
    """
    async with _open(pipeline) as client:
        await load_note(client.host.metadata, pipeline.pipeline.name)
        for sink in pipeline.sinks:
            if sink.topic is not None:
                await client.layout(str(parse_topic("topic", sink.topic)))
        return await _source_statuses(client, pipeline)


async def load_status(pipeline: Pipeline) -> PipelineStatus:
    """Return the progress of the pipeline."""
    async with _open(pipeline) as client:
        coordinator = await application_coordinator(client.host)
        application = await coordinator.application(pipeline.pipeline.name)
        found = await _open_transaction(client, application)
        now_ms, sources = client.host.environment.now_ms(), await _source_statuses(client, pipeline)
        state = await load_note(client.host.metadata, pipeline.pipeline.name)
        return PipelineStatus(application, found, now_ms, sources, state)


async def abort_open_transaction(pipeline: Pipeline, run: str) -> bool:
    """Abort the transaction that a run of the pipeline has left open, if any, so that it no longer blocks readers.

    The transaction of a newer run, which has taken the pipeline over, is unaffected. If this is never called, the next
    start or the transaction's timeout aborts it.
    """
    async with _open(pipeline) as client:
        coordinator = await application_coordinator(client.host)
        application = await coordinator.application(pipeline.pipeline.name)
        found = await _open_transaction(client, application)
        if found is None or application is None or application.run != run:
            return False
        with contextlib.suppress(InvalidTransactionState, TransactionNotFound):  # it has ended in the meantime
            await coordinator.end(End(found.txn_id, Action.ABORT, operator=True))
        return True


@contextlib.asynccontextmanager
async def _open(pipeline: Pipeline) -> AsyncIterator[Client]:
    config = load_config(StoreOptions(**store_options(pipeline)).source())
    # A short-lived process: sweeping is left to long-lived ones.
    quiet = msgspec.structs.replace(config.transactions, sweep=False)
    async with txnframework.open(msgspec.structs.replace(config, transactions=quiet)) as client:
        yield client


async def _open_transaction(client: Client, application: Application | None) -> Transaction | None:
    if application is None or application.txn_id is None:
        return None
    with contextlib.suppress(TransactionNotFound):
        found = await (await client.host.coordinator_for(application.txn_id)).describe(application.txn_id)
        return found if found.state is State.OPEN else None
    return None


async def _source_statuses(client: Client, pipeline: Pipeline) -> tuple[SourceStatus, ...]:
    found = []
    for source in pipeline.sources:
        for topic in map(str, parsed_source(pipeline, source).topics):
            await client.layout(topic)
            lag, begun = None, False
            if source.group_id is not None:
                with contextlib.suppress(SubscriptionNotFound):
                    lag, begun = (await client.lag(topic, source.group_id)).segments, True
            found.append(SourceStatus(source.view, topic, source.group_id, begun, lag))
    return tuple(found)
