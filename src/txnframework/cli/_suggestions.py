"""The names that were probably meant where a name does not exist."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING

from txnframework.errors import SubscriptionNotFound, TopicNotFound, TxnFrameworkError
from txnframework.model.names import TopicName, topic_of

if TYPE_CHECKING:
    from txnframework.client import Client

SIMILARITY_MIN = 0.75
"""From which similarity on a name is suggested; 1 is the same name."""


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are similar to ``name`` regardless of case, the most similar first."""
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in get_close_matches(name.lower(), by_lower, cutoff=SIMILARITY_MIN)]


def question_of(names: Iterable[str]) -> str:
    """Return the question that suggests names; empty if there are none."""
    shown = " or ".join(names)
    return f"did you mean {shown}?" if shown else ""


@asynccontextmanager
async def suggest_names(client: Client) -> AsyncIterator[None]:
    """
    Add a note with similar names to an error of the block about a topic or subscription that does not exist.

    The names of the namespace are read from the client's stores. If that fails, the error has no note.
    """
    try:
        yield
    except (TopicNotFound, SubscriptionNotFound) as error:
        with suppress(TxnFrameworkError):
            if question := question_of(await _similar_to(error, client)):
                error.add_note(question)
        raise


async def _similar_to(error: TopicNotFound | SubscriptionNotFound, client: Client) -> list[str]:
    topic = topic_of(error.topic)
    if isinstance(error, SubscriptionNotFound):
        return near_names(error.subscription, (await client.layout(topic)).subscriptions)
    known = await client.topics.list(topic.tenant, topic.namespace)
    if error.deleted or topic in known:  # it exists here, so another client's stores lack it
        return []
    return [str(one) for name in near_names(topic.name, {one.name for one in known}) for one in _named(name, known)]


def _named(name: str, topics: Iterable[TopicName]) -> list[TopicName]:
    """Return the topics of a name; one namespace may have two, in different domains."""
    return [one for one in topics if one.name == name]
