"""Telling callers that their topic was deleted, whatever it was that failed because of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from txnframework.broker import Host
from txnframework.errors import Closed, Conflict, NotFound, TopicNotFound, TxnFrameworkError
from txnframework.model.layout import Layout


async def require_topics(host: Host, layouts: Iterable[Layout]) -> None:
    """
    Look whether the topics are there that had these layouts.

    :raises TopicNotFound: one was deleted; there may be another one of its name.
    """
    for layout in layouts:
        segment = str(layout.name_of(next(iter(layout.segments))))
        if await host.topics.deleting.is_deleted(segment, layout.life):
            raise TopicNotFound(str(layout.topic), deleted=True)


@asynccontextmanager
async def naming_deletion(host: Host, layouts: Callable[[], Iterable[Layout]]) -> AsyncIterator[None]:
    """
    Raise TopicNotFound for what is raised within because one of the topics was deleted.

    What is left of a topic fails in many ways while it is removed: its ledger, its cursors and its dispatch go one by
    one. Where the store cannot tell, the error goes on as it is.
    """
    try:
        yield
    except (NotFound, Closed, Conflict) as error:
        if isinstance(error, TopicNotFound) or host.closing:
            raise
        try:
            await require_topics(host, layouts())
        except TopicNotFound as deleted:
            raise deleted from error
        except TxnFrameworkError:
            pass
        raise
