"""The topics of a namespace, and one topic."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from txnframework.client import Client
from txnframework_pulsar.admin.answers import message_place, topic_statistics
from txnframework_pulsar.admin.requests import RequestedPartitions, answer, body_of, done, is_set, word
from txnframework_pulsar.ids import pulsar_id
from txnframework_pulsar.names import is_coordinator, pulsar_name
from txnframework_pulsar.readers import NOTHING
from txnframework_pulsar.topics import Topics

NAMESPACE = "/admin/v2/persistent/{tenant}/{namespace}"
TOPIC = f"{NAMESPACE}/{{topic}}"


def topic_in(request: Request) -> str:
    """Return the topic of a request's path, as clients name it."""
    return f"persistent://{namespace_in(request)}/{word(request, 'topic')}"


def namespace_in(request: Request) -> str:
    """Return the namespace of a request's path."""
    return f"{word(request, 'tenant')}/{word(request, 'namespace')}"


class TopicResources:
    """
    Lists, creates, describes and deletes topics.

    No topic has partitions for clients, so one that is created with partitions has that many segments.
    """

    def __init__(self, client: Client, topics: Topics) -> None:
        self._client = client
        self._topics = topics

    def routes(self) -> list[Route]:
        """Return the routes; paths with more words come first."""
        return [
            Route("/admin/v2/namespaces/{tenant}/{namespace}/topics", self._listed),
            Route(f"{NAMESPACE}/partitioned", self._none),
            Route("/admin/v2/non-persistent/{tenant}/{namespace}", self._none),
            Route("/admin/v2/non-persistent/{tenant}/{namespace}/partitioned", self._none),
            Route(NAMESPACE, self._listed),
            Route(f"{TOPIC}/partitions", self._partitions, methods=["GET"]),
            Route(f"{TOPIC}/partitions", self._create_partitioned, methods=["PUT"]),
            Route(f"{TOPIC}/partitions", self._delete, methods=["DELETE"]),
            Route(f"{TOPIC}/stats", self._statistics),
            Route(f"{TOPIC}/lastMessageId", self._last_message),
            Route(TOPIC, self._create, methods=["PUT"]),
            Route(TOPIC, self._delete, methods=["DELETE"]),
        ]

    async def _listed(self, request: Request) -> Response:
        found = await self._topics.in_namespace(namespace_in(request))
        return answer([pulsar_name(one) for one in found])

    async def _none(self, _: Request) -> Response:
        return answer([])

    async def _partitions(self, request: Request) -> Response:
        named = topic_in(request)
        if is_coordinator(named):
            return answer({"partitions": 1})
        topic = self._topics.named(named)
        # A client that is about to open the topic says so, and may create it then.
        if not is_set(request, "checkAllowAutoCreation"):
            await self._client.layout(topic)
        return answer({"partitions": 0})

    async def _create(self, request: Request) -> Response:
        await self._topics.create(self._topics.named(topic_in(request)))
        return done()

    async def _create_partitioned(self, request: Request) -> Response:
        asked: RequestedPartitions | int = await body_of(request, RequestedPartitions | int, 1)  # type: ignore[arg-type]
        segments = asked if isinstance(asked, int) else asked.partitions
        await self._topics.create(self._topics.named(topic_in(request)), segments)
        return done()

    async def _delete(self, request: Request) -> Response:
        await self._client.delete_topic(self._topics.named(topic_in(request)), force=is_set(request, "force"))
        return done()

    async def _statistics(self, request: Request) -> Response:
        return answer(topic_statistics(await self._client.describe_topic(self._topics.named(topic_in(request)))))

    async def _last_message(self, request: Request) -> Response:
        found = await self._client.last_message(self._topics.named(topic_in(request)))
        last = None if found is None else pulsar_id(found)
        if last is None or last == NOTHING:
            return answer({"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
        return answer(message_place(last))
