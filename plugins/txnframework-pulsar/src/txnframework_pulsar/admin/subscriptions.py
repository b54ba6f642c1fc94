"""The subscriptions of a topic."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from txnframework.client import Client, MessageID
from txnframework.errors import Conflict, InvalidInput, SubscriptionNotFound
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName
from txnframework_pulsar.admin.requests import RequestedMessage, answer, body_of, done, is_set, number, subscription_in
from txnframework_pulsar.admin.topics import TOPIC, topic_in
from txnframework_pulsar.deliveries import Deliveries
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.ids import SegmentPosition, place_of
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.wire import messages_pb2 as pb

SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"


class SubscriptionResources:
    """Lists, creates, moves and deletes subscriptions."""

    def __init__(self, client: Client, topics: Topics) -> None:
        self._client = client
        self._topics = topics

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(f"{TOPIC}/subscriptions", self._listed),
            Route(f"{SUBSCRIPTION}/skip_all", self._skip_all, methods=["POST"]),
            Route(f"{SUBSCRIPTION}/resetcursor/{{time_ms}}", self._seek_time, methods=["POST"]),
            Route(f"{SUBSCRIPTION}/resetcursor", self._seek_message, methods=["POST"]),
            Route(SUBSCRIPTION, self._create, methods=["PUT"]),
            Route(SUBSCRIPTION, self._delete, methods=["DELETE"]),
        ]

    async def _listed(self, request: Request) -> Response:
        layout = await self._client.layout(self._topics.named(topic_in(request)))
        return answer(sorted(layout.subscriptions))

    async def _create(self, request: Request) -> Response:
        name = subscription_in(request)
        asked = place_of((await body_of(request, RequestedMessage, RequestedMessage())).to_wire())
        topic, layout = await self._topics.opened(topic_in(request))
        if name in layout.subscriptions:
            raise Conflict(f"subscription {name} of {topic} exists")
        if isinstance(asked, str):
            await self._client.subscribe(topic, name, start="earliest" if asked == "earliest" else "latest")
            return done()
        target = _message(layout, asked)
        # Crash window: between these calls the subscription begins with the first message, and misses nothing.
        await self._client.subscribe(topic, name, start="earliest")
        await self._client.seek(topic, name, target)
        return done()

    async def _delete(self, request: Request) -> Response:
        topic, name = await self._found(request)
        if not is_set(request, "force") and await self._client.dispatchers(topic, name):
            raise Refused(pb.CONSUMER_BUSY, f"subscription {name} of {topic} has consumers")
        await self._client.unsubscribe(topic, name)
        return done()

    async def _skip_all(self, request: Request) -> Response:
        topic, name = await self._found(request)
        await self._client.seek(topic, name, "latest")
        return done()

    async def _seek_time(self, request: Request) -> Response:
        topic, name = await self._found(request)
        await self._client.seek(topic, name, number(request, "time_ms"))
        return done()

    async def _seek_message(self, request: Request) -> Response:
        topic, name = await self._found(request)
        asked = await body_of(request, RequestedMessage, RequestedMessage())
        place = place_of(asked.to_wire())
        if isinstance(place, str):
            await self._client.seek(topic, name, "earliest" if place == "earliest" else "latest")
            return done()
        if asked.excluded:
            raise InvalidInput("a subscription is moved to the message that it delivers next, not behind a message")
        await self._client.seek(topic, name, _message(await self._client.layout(topic), place))
        return done()

    async def _found(self, request: Request) -> tuple[TopicName, str]:
        topic, name = self._topics.named(topic_in(request)), subscription_in(request)
        if name not in (await self._client.layout(topic)).subscriptions:
            raise SubscriptionNotFound(str(topic), name)
        return topic, name


def _message(layout: Layout, place: SegmentPosition) -> MessageID:
    return Deliveries(layout).message_id(place)
