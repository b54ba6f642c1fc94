"""A batch job is one transaction, and with a version of its application it takes effect once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from txnframework.errors import Fenced, OutcomeUnknown
from txnframework.model.metadata import Put
from txnframework.model.paths import header_key
from txnframework.model.transactions import State
from txnframework_spark.errors import ApplicationMixed, BatchNotCommitted, TopicMissing
from txnframework_spark.microbatch.batch import application_coordinator
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.sink import job as job_sink
from txnframework_spark.sink.branch_writer import open_attempt_writer
from txnframework_spark.sink.commit import Staged
from txnframework_spark.sink.job import BatchJob, abort_job, begin_job, commit_job

Play = Callable[..., None]


def options(version: int | None = None, **others: str) -> SinkOptions:
    named = {} if version is None else {"txnAppId": "app", "txnVersion": str(version)}
    return SinkOptions.of_job({"topic": "out", **named, **others})


async def stage(world: Any, job: BatchJob, *values: str, given: SinkOptions | None = None) -> Staged:
    """Run one attempt of a write task."""
    writer, branch = open_attempt_writer(world.host, given or options(), job.txn_id, "job/0")
    await writer.write(pa.RecordBatch.from_pydict({"value": list(values)}))
    await writer.finish()
    return Staged(job.txn, branch, writer.rows)


async def write(world: Any, given: SinkOptions, *values: str) -> BatchJob:
    """Run a whole job, as Spark does."""
    job = await begin_job(world.host, given)
    await commit_job(world.host, job, [] if job.replay else [await stage(world, job, *values, given=given)])
    return job


def test_all_of_a_job_is_visible_at_once_and_of_its_attempts_the_winners(play: Play) -> None:
    async def scenario(world: Any) -> None:
        job = await begin_job(world.host, options())
        first = await stage(world, job, "a", "b")
        await stage(world, job, "c")
        second = await stage(world, job, "c")
        assert await world.read() == []
        await commit_job(world.host, job, [first, second])
        assert sorted(await world.read()) == ["a", "b", "c"]
        await abort_job(world.host, job)
        assert sorted(await world.read()) == ["a", "b", "c"]

    play(scenario)


def test_a_job_that_fails_leaves_nothing(play: Play) -> None:
    async def scenario(world: Any) -> None:
        job = await begin_job(world.host, options())
        staged = await stage(world, job, "a")
        with pytest.raises(BatchNotCommitted, match="1 tasks"):
            await commit_job(world.host, job, [staged, None])
        other = await begin_job(world.host, options())
        await stage(world, other, "b")
        await abort_job(world.host, other)
        coordinator = await application_coordinator(world.host)
        for ended in (job, other):
            assert (await coordinator.describe(ended.txn_id)).state is State.ABORTED
        with pytest.raises(BatchNotCommitted, match="the job was not committed"):
            await commit_job(world.host, other, [])
        assert await world.read() == []

    play(scenario)


def test_a_version_takes_effect_once_and_a_job_that_comes_again_says_so(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: Any) -> None:
        await write(world, options(3), "a")
        with caplog.at_level(logging.WARNING, "txnframework_spark.sink"):
            assert (await write(world, options(3), "a")).replay
        assert "txnVersion 3 of txnAppId app was committed before" in caplog.text
        assert (await write(world, options(2), "older")).replay
        assert not (await write(world, options(7), "b")).replay
        assert sorted(await world.read()) == ["a", "b"]

    play(scenario)


def test_a_job_killed_between_its_commit_and_its_end_is_a_replay(play: Play) -> None:
    """Nothing has carried the outcome into the application's record yet: the header alone tells."""

    async def scenario(world: Any) -> None:
        coordinator = await application_coordinator(world.host)
        settle = type(coordinator).settle

        async def nothing(self: Any, txn_id: Any) -> None:
            return None

        type(coordinator).settle = nothing  # type: ignore[method-assign]
        try:
            await write(world, options(0), "a")
            assert (await write(world, options(0), "a")).replay
        finally:
            type(coordinator).settle = settle  # type: ignore[method-assign]
        assert await world.read() == ["a"]

    play(scenario)


def test_a_newer_job_ends_the_one_that_is_underway(play: Play) -> None:
    """Also the same version, started again while the first one still runs: one of the two counts."""

    async def scenario(world: Any) -> None:
        old = await begin_job(world.host, options(1))
        staged = await stage(world, old, "a")
        await write(world, options(1), "a")
        with pytest.raises(Fenced, match="a newer job"):
            await commit_job(world.host, old, [staged])
        assert await world.read() == ["a"]

    play(scenario)


def test_a_replay_does_not_disturb_the_job_that_is_underway(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await write(world, options(1), "a")
        job = await begin_job(world.host, options(2))
        staged = await stage(world, job, "b")
        assert (await write(world, options(1), "a")).replay
        await commit_job(world.host, job, [staged])
        assert sorted(await world.read()) == ["a", "b"]

    play(scenario)


def test_streams_and_jobs_do_not_share_an_application(play: Play) -> None:
    """Their versions are counted apart, and neither count says anything about the other's batches."""

    async def scenario(world: Any) -> None:
        await world.publish("x")
        await (await world.run()).batch(0, None)
        with pytest.raises(ApplicationMixed, match="the stream of query q, so a batch job cannot use it"):
            await begin_job(world.host, options(5))
        named = {"topic": "out", "txnAppId": "jobs"}
        await write(world, SinkOptions.of_job({**named, "txnVersion": "1"}), "a")
        await world.publish("y")
        with pytest.raises(ApplicationMixed, match="batch jobs, so a stream cannot use it"):
            await (await world.run("q2", sink=named)).batch(0, None)
        assert sorted(await world.read()) == ["a", "x!"]
        await write(world, SinkOptions.of_job({**named, "txnVersion": "2"}), "b")
        assert sorted(await world.read()) == ["a", "b", "x!"]

    play(scenario)


def test_without_transactions_rows_are_there_as_they_are_written(play: Play) -> None:
    async def scenario(world: Any) -> None:
        given = options(transactional="false")
        job = await begin_job(world.host, given)
        staged = await stage(world, job, "a", given=given)
        assert await world.read() == ["a"]
        await commit_job(world.host, job, [staged])
        await abort_job(world.host, job)
        assert await world.read() == ["a"]

    play(scenario)


def test_a_topic_that_is_not_there_is_said_before_the_tasks_begin(play: Play) -> None:
    async def scenario(world: Any) -> None:
        with pytest.raises(TopicMissing, match="txnframework topic create"):
            await begin_job(world.host, SinkOptions.of_job({"topic": "nowhere"}))

    play(scenario)


@pytest.mark.parametrize("tasks", [1, 200])
def test_however_many_tasks_there_are_the_header_changes_once(play: Play, tasks: int) -> None:
    """One compare-and-set lists the winners."""

    async def scenario(world: Any) -> None:
        coordinator = await application_coordinator(world.host)
        job = await begin_job(world.host, options(1))
        staged = [await stage(world, job, f"v{task}") for task in range(tasks)]
        written: list[str] = []
        store = type(world.host.metadata)
        apply, put = store.apply, store.put

        async def counted_apply(self: Any, batch: Any) -> Any:
            written.extend(write.key.path for write in batch.puts if isinstance(write, Put))
            return await apply(self, batch)

        async def counted_put(self: Any, write: Put) -> int:
            written.append(write.key.path)
            return await put(self, write)

        store.apply, store.put = counted_apply, counted_put
        try:
            await commit_job(world.host, job, staged)
        finally:
            store.apply, store.put = apply, put
        assert written.count(header_key(job.txn_id).path) == 1
        committed = await coordinator.describe(job.txn_id)
        assert len(committed.branches or ()) == tasks + 1
        assert len(await world.read()) == tasks

    play(scenario)


@pytest.mark.parametrize("version", [None, 1])
def test_a_job_whose_reply_was_lost_has_not_failed(
    play: Play, monkeypatch: pytest.MonkeyPatch, version: int | None
) -> None:
    """Also where a newer job has begun by the time it asks again."""
    real = job_sink.commit_branches

    async def scenario(world: Any) -> None:
        job = await begin_job(world.host, options(version))
        staged = await stage(world, job, "a")

        async def lost(*arguments: Any) -> None:
            monkeypatch.setattr(job_sink, "commit_branches", real)
            await real(*arguments)
            if version is not None:
                await begin_job(world.host, options(version + 1))
            raise OutcomeUnknown("the reply was lost")

        monkeypatch.setattr(job_sink, "commit_branches", lost)
        await commit_job(world.host, job, [staged])
        assert await world.read() == ["a"]

    play(scenario)


def test_a_job_that_finds_the_application_taken_by_a_stream_leaves_nothing_open(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream commits its first batch between the job's look and its beginning."""
    real = job_sink.begin

    async def scenario(world: Any) -> None:
        began: list[Any] = []

        async def late(*arguments: Any) -> Any:
            await world.publish("x")
            await (await world.run()).batch(0, None)
            began.append(await real(*arguments))
            return began[0]

        monkeypatch.setattr(job_sink, "begin", late)
        with pytest.raises(ApplicationMixed):
            await begin_job(world.host, options(1))
        assert (await (await application_coordinator(world.host)).describe(began[0])).state is State.ABORTED

    play(scenario)
