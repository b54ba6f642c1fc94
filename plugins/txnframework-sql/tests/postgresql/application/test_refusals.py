"""Connections that cannot carry a commit are refused in one sentence, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from application_connections import INSERT, KINDS, Application, Way, asked
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput, VersionMismatch
from txnframework.model import Expect
from txnframework_sql import MetadataOptions, open_metadata_store
from txnframework_sql.postgresql._grants import grants
from txnframework_sql.testing.servers.databases import fresh_database

Run = Callable[..., None]


async def refused(application: Application, given: object, version: int | Expect, sentence: str) -> None:
    """Try to join and to write the header, and expect this sentence; a step may be what finds out."""
    with pytest.raises(InvalidInput, match=sentence):
        await application.join_and_end(given, version)


async def test_other_databases(application: Application) -> None:
    """A database without the tables is refused, and so is a copy that has the same header."""
    version = await application.begun()
    with fresh_database() as url:
        other = await asyncpg.connect(url)
        try:
            await refused(application, other, version, "not connected to the database of the metadata store")
            assert not other.is_in_transaction()
            copy = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
            await other.execute(
                "INSERT INTO records (path, partition, version, value) VALUES ($1, 't', $2, 'open')",
                application.header.path,
                version if isinstance(version, int) else 1,
            )
            # Two checks at one time do not exclude each other.
            another = await asyncpg.connect(url)
            await another.execute("BEGIN")
            await refused(application, another, version, "not connected to the database of the metadata store")
            await refused(application, other, version, "not connected to the database of the metadata store")
            await another.close()
            await copy.close()
        finally:
            await other.close()


async def test_an_open_transaction_stays_usable(kind: Any, application: Application) -> None:
    """
    A refusal by the join does not take the rows of a transaction that was open before.

    A transaction of SQLAlchemy is refused by the step, and is rolled back.
    """
    version = await application.begun()
    with fresh_database() as url:
        await asked(url, "CREATE TABLE mine (id serial PRIMARY KEY, text text NOT NULL)")
        async with kind(url) as opened:
            if opened.begins:
                await opened.run("BEGIN")
            await opened.run(INSERT)
            await refused(application, opened.given, version, "not connected to the database of the metadata store")
            kept = not hasattr(opened.given, "begin_nested")
            if kept:
                await opened.run(INSERT)
                await opened.run("COMMIT")
        assert int(await asked(url, "SELECT count(*) FROM mine")) == (2 if kept else 0)


async def test_an_open_transaction_without_rights(application: Application) -> None:
    """A login that lacks the rights keeps its open transaction as well."""
    version = await application.begun()
    await asked(application.url, "DROP ROLE IF EXISTS guest")
    await asked(application.url, "CREATE ROLE guest")
    connection = await asyncpg.connect(application.url)
    try:
        await connection.execute("GRANT INSERT ON mine TO guest; GRANT USAGE ON SEQUENCE mine_id_seq TO guest")
        await connection.execute("SET ROLE guest; BEGIN")
        await refused(application, connection, version, "lacks rights on the tables")
        await connection.execute(f"{INSERT}; COMMIT")
        assert await application.rows() == 1
    finally:
        await connection.execute("RESET ROLE; DROP OWNED BY guest")
        await connection.close()


async def test_what_people_pass_by_mistake(application: Application) -> None:
    """Each sentence says what to pass instead."""
    version = await application.begun()
    url = urlsplit(application.url)
    engine = create_engine(url._replace(scheme="postgresql+psycopg").geturl())
    async_engine = create_async_engine(url._replace(scheme="postgresql+asyncpg").geturl())
    pool = await asyncpg.create_pool(application.url, min_size=0)
    given: list[tuple[Any, str]] = [
        (engine, "engine.connect"),
        (async_engine, "engine.connect"),
        (sessionmaker(engine), "a session that it has made"),
        (async_sessionmaker(async_engine), "a session that it has made"),
        (pool, "pool.acquire"),
        (async_engine.connect(), "is not open"),
        (application.url, "is no connection"),
        (None, "is no connection"),
        (Session(engine, twophase=True), "commits in two phases"),
        (Session(), "no database of its own"),
        (create_engine("sqlite://").connect(), "not connected to the database"),
    ]
    with engine.connect() as bound:
        for one, sentence in [*given, (Session(bound), "pass that connection")]:
            await refused(application, one, version, sentence)
    closed = psycopg.connect(application.url)
    closed.close()
    await refused(application, closed, version, "pass an open one")
    with engine.connect() as left:
        pass
    await refused(application, left, version, "pass an open one")
    for one, _ in given:
        if isinstance(one, Session):
            one.close()
    given[-1][0].close()
    pool.terminate()
    engine.dispose()
    await async_engine.dispose()


async def test_rights(application: Application) -> None:
    """Another login needs no more rights than those that the sentence refers to."""
    version = await application.begun()
    await asked(application.url, "DROP ROLE IF EXISTS clerk")
    await asked(application.url, "CREATE ROLE clerk")
    connection = await asyncpg.connect(application.url)
    try:
        await connection.execute("GRANT INSERT ON mine TO clerk; GRANT USAGE ON SEQUENCE mine_id_seq TO clerk")
        await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC; SET ROLE clerk")
        sentence = "lacks rights on the tables .*'txnframework sql grants LOGIN --commits-only'"
        await refused(application, connection, version, sentence)
        granted = " ".join(grants("clerk", "public", application.url, commits_only=True))
        await connection.execute(f"RESET ROLE; {granted} SET ROLE clerk")
        joined = await application.store.join(connection)
        await connection.execute(INSERT)
        await application.end(joined, version)
        await joined.commit()
        assert (await application.rows(), await application.state()) == (1, b"committed")
    finally:
        await connection.execute("RESET ROLE; GRANT ALL ON SCHEMA public TO PUBLIC; DROP OWNED BY clerk")
        await connection.close()


async def test_read_only(application: Application) -> None:
    """A connection that may not write is refused."""
    version = await application.begun()
    settings = {"default_transaction_read_only": "on"}
    connection = await asyncpg.connect(application.url, server_settings=settings)
    await refused(application, connection, version, "is read-only")
    await connection.close()


@pytest.mark.parametrize("way", [Way.PUT], indirect=True, ids=["put"])
async def test_snapshots(application: Application) -> None:
    """
    A snapshot that is older than the header is refused; a header that changed after it is a mismatch.

    A step with an entry takes no snapshot; see ``test_transact``.
    """
    connection = await asyncpg.connect(application.url)
    for isolation in ("REPEATABLE READ", "SERIALIZABLE"):
        await connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        await connection.execute("SELECT * FROM mine")
        version = await application.begun()
        await refused(application, connection, version, "begin the block before the first statement")
        assert await application.state() == b"open"
        await connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        joined = await application.store.join(connection)
        await connection.execute(INSERT)
        aborted = await application.store.put(application.ended(version))
        with pytest.raises(VersionMismatch) as raised:
            await application.end(joined, version)
        assert raised.value.actual == aborted
        await joined.rollback()
        assert await application.rows() == 0
        await application.store.delete(application.header, aborted)
    await connection.close()


async def test_a_failed_statement_before_the_block(application: Application) -> None:
    """A transaction that can only be rolled back is not joined."""
    version = await application.begun()
    connection = await asyncpg.connect(application.url)
    await connection.execute("BEGIN")
    with pytest.raises(asyncpg.PostgresError):
        await connection.execute("SELECT 1/0")
    await refused(application, connection, version, "roll it back before the block")
    await connection.close()


async def test_the_store_has_lost_its_witness(application: Application) -> None:
    """The lock that proves the database is taken again after the store's connections were lost."""
    version = await application.begun()
    async with KINDS["asyncpg"](application.url) as opened:
        for _ in range(2):
            joined = await application.store.join(opened.given)
            await joined.rollback()
            await asked(
                application.url,
                "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
                " WHERE application_name = 'txnframework' AND datname = current_database()",
            )
        joined = await application.store.join(opened.given)
        await application.end(joined, version)
        await joined.commit()
        assert await application.state() == b"committed"
