"""Requests about topics: where they are, which there are, and how far they reach."""

from __future__ import annotations

from txnframework.client import Client, create_topic
from txnframework.errors import TopicNotFound
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.names import is_coordinator, pulsar_name, topic_of
from txnframework_pulsar.turn import ServingTurn
from txnframework_pulsar.wire import messages_pb2 as pb

TOPICS_PAGE = 1_000
ENCRYPTED = "pulsar+ssl://"


class Topics:
    """
    The topics of one domain, under the names that Pulsar clients use.

    ``creates``: whether a topic that a client names is created if it does not exist. ``turn`` knows which gateway
    serves.
    """

    def __init__(self, client: Client, domain: str, creates: bool, turn: ServingTurn) -> None:
        self._client = client
        self._domain = domain
        self._creates = creates
        self._turn = turn

    def named(self, text: str) -> TopicName:
        """Return the topic that a client names."""
        return topic_of(text, self._domain)

    async def opened(self, text: str, *, create: bool = True) -> tuple[TopicName, Layout]:
        """
        Return a topic and its layout, and create the topic where the client and the gateway allow it.

        :raises TopicNotFound: the topic does not exist, and was not created.
        """
        topic = self.named(text)
        try:
            return topic, await self._client.layout(topic)
        except TopicNotFound:
            if not (create and self._creates):
                raise
        await self.create(topic, exist_ok=True)
        return topic, await self._client.layout(topic)

    async def create(self, topic: TopicName, segments: int = 1, *, exist_ok: bool = False) -> None:
        """Create a topic; its name may have spaces, which Pulsar accepts and ``Client.create_topic`` refuses."""
        await create_topic(self._client.host, topic, segments, exist_ok=exist_ok)

    async def partitions(self, asked: pb.PartitionMetadata) -> pb.Command:
        """Answer how many partitions a topic has: none, as segments are no partitions."""
        partitions = 1 if is_coordinator(asked.topic) else 0
        if not partitions:
            self.named(asked.topic)
        answer = pb.PartitionMetadataResponse(
            partitions=partitions, request_id=asked.request_id, response=pb.PartitionMetadataResponse.SUCCESS
        )
        return pb.Command(partition_metadata_response=answer)

    async def lookup(self, asked: pb.LookupTopic) -> pb.Command:
        """Answer where a topic is served: here, or at the gateway that has the turn."""
        if not is_coordinator(asked.topic):
            self.named(asked.topic)
        url = self.serving_url()
        encrypted = url.startswith(ENCRYPTED)
        kind = pb.LookupTopicResponse.CONNECT if self._turn.is_held else pb.LookupTopicResponse.REDIRECT
        answer = pb.LookupTopicResponse(
            broker_service_url="" if encrypted else url,
            broker_service_url_tls=url if encrypted else "",
            response=kind,
            request_id=asked.request_id,
            authoritative=True,
            proxy_through_service_url=False,
        )
        return pb.Command(lookup_topic_response=answer)

    def serving_url(self) -> str:
        """
        Return the URL of the gateway that serves.

        :raises Refused: none serves at this moment.
        """
        if not self._turn.holder:
            raise Refused(pb.SERVICE_NOT_READY, "no gateway serves at this moment")
        return self._turn.holder

    async def in_namespace(self, namespace: str = "") -> list[TopicName]:
        """Return the topics of a namespace, or all topics, in the order of their names."""
        found: list[TopicName] = []
        while True:
            page = await self._client.list_topics(
                namespace, domain=self._domain, after=found[-1] if found else None, topics_max=TOPICS_PAGE
            )
            found += (one.topic for one in page)
            if len(page) < TOPICS_PAGE:
                return found

    async def listed(self, asked: pb.GetTopicsOfNamespace) -> pb.Command:
        """Answer which topics a namespace has; clients match their patterns themselves."""
        answer = pb.GetTopicsOfNamespaceResponse(request_id=asked.request_id, filtered=False, changed=True)
        if asked.mode != pb.GetTopicsOfNamespace.NON_PERSISTENT:
            answer.topics.extend(pulsar_name(one) for one in await self.in_namespace(asked.namespace))
        return pb.Command(get_topics_of_namespace_response=answer)
