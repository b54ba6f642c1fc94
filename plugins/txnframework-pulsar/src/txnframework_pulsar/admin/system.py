"""What clients and tools ask before they use topics: where these are served, clusters, tenants and namespaces."""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from txnframework.client import Client
from txnframework.errors import Conflict, TopicNotFound
from txnframework.model.names import check_new_name
from txnframework_pulsar.admin.requests import answer, done, is_set, word
from txnframework_pulsar.admin.topics import namespace_in, topic_in
from txnframework_pulsar.names import pulsar_name
from txnframework_pulsar.topics import ENCRYPTED, Topics

CLUSTER = "standalone"
TENANT = "/admin/v2/tenants/{tenant}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"


class SystemResources:
    """
    Answers as a cluster of one broker.

    Tenants and namespaces are parts of names: all are allowed, and those are listed that have a topic. So requests that
    create them succeed, and store nothing.
    """

    def __init__(self, client: Client, topics: Topics) -> None:
        self._client = client
        self._topics = topics

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}", self._lookup),
            Route("/admin/v2/brokers/health", self._health),
            Route("/admin/v2/clusters", self._clusters),
            Route("/admin/v2/clusters/{cluster}", self._cluster),
            Route("/admin/v2/tenants", self._tenants),
            Route(TENANT, self._tenant, methods=["GET"]),
            Route(TENANT, self._allow_tenant, methods=["PUT", "POST"]),
            Route("/admin/v2/namespaces/{tenant}", self._namespaces),
            Route(NAMESPACE, self._allow_namespace, methods=["PUT"]),
            Route(NAMESPACE, self._delete_namespace, methods=["DELETE"]),
        ]

    async def _lookup(self, request: Request) -> Response:
        self._topics.named(topic_in(request))
        url = self._topics.serving_url()
        encrypted = url.startswith(ENCRYPTED)
        # The client for C++ ends its process if one of them is missing; it accepts null.
        return answer({"brokerUrl": None if encrypted else url, "brokerUrlTls": url if encrypted else None})

    async def _health(self, _: Request) -> Response:
        await self._client.ping()
        return PlainTextResponse("ok")

    async def _clusters(self, _: Request) -> Response:
        return answer([CLUSTER])

    async def _cluster(self, _: Request) -> Response:
        return answer({"brokerServiceUrl": self._topics.serving_url()})

    async def _tenants(self, _: Request) -> Response:
        return answer(sorted({one.tenant for one in await self._topics.in_namespace()}))

    async def _tenant(self, request: Request) -> Response:
        check_new_name(word(request, "tenant"), "tenant")
        return answer({"adminRoles": [], "allowedClusters": [CLUSTER]})

    async def _allow_tenant(self, request: Request) -> Response:
        check_new_name(word(request, "tenant"), "tenant")
        return done()

    async def _namespaces(self, request: Request) -> Response:
        topics = await self._topics.in_namespace()
        tenant = word(request, "tenant")
        return answer(sorted({f"{tenant}/{one.namespace}" for one in topics if one.tenant == tenant}))

    async def _allow_namespace(self, request: Request) -> Response:
        for what in ("tenant", "namespace"):
            check_new_name(word(request, what), what)
        return done()

    async def _delete_namespace(self, request: Request) -> Response:
        namespace, force = namespace_in(request), is_set(request, "force")
        topics = await self._topics.in_namespace(namespace)
        if topics and not force:
            raise Conflict(f"namespace {namespace} has topics, such as {pulsar_name(topics[0])}")
        # One after the other: after a failure, a repeated request deletes the others.
        for topic in topics:
            with suppress(TopicNotFound):
                await self._client.delete_topic(topic, force=True)
        return done()
