"""The server: listens for Pulsar clients, and ends with their connections."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from txnframework.cli.addresses import listening_socket, shown_address
from txnframework.cli.connections import ACCEPTED_AT_ONCE, BoundedListener, Connections, within_file_limit
from txnframework.client import Client
from txnframework.model.names import TOPIC
from txnframework_pulsar.access import Access
from txnframework_pulsar.admin.application import admin_application
from txnframework_pulsar.admin.server import serving_admin
from txnframework_pulsar.connection import Connection
from txnframework_pulsar.handles import Gateway
from txnframework_pulsar.limits import Limits
from txnframework_pulsar.scalable import ScalableTopics
from txnframework_pulsar.schemas import Schemas
from txnframework_pulsar.topic_epochs import TopicEpochs
from txnframework_pulsar.topic_producers import TopicProducers
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.transactions import Transactions
from txnframework_pulsar.turn import ServingTurn

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """
    * ``host``, ``port``: where to listen; port 0 chooses a free one.
    * ``advertised``: the ``HOST:PORT`` by which clients reach the gateway; empty: where it listens.
    * ``domain``: which topics are served, ``topic`` or ``persistent``.
    * ``creates``: whether topics that clients name are created.
    * ``tokens``: clients must show one of these; empty: every client is accepted.
    * ``tls``: the certificate and its key; None: connections are not encrypted.
    * ``admin``: the host and the port of the REST API; None: it is not served.
    """

    host: str = "127.0.0.1"
    port: int = 6650
    advertised: str = ""
    domain: str = TOPIC
    creates: bool = True
    tokens: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None
    admin: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class GatewayURLs:
    """Where clients reach a gateway, and its REST API (None: it is not served)."""

    broker: str
    admin: str | None


@asynccontextmanager
async def serving(client: Client, options: ServerOptions, limits: Limits | None = None) -> AsyncIterator[GatewayURLs]:
    """
    Serve the topics of a client to Pulsar clients; yields the URLs of the gateway.

    At the end connections are closed. Open transactions of clients are aborted when ``client`` closes.

    :raises InvalidInput: an address cannot be used.
    """
    async with AsyncExitStack() as exits:
        listening = exits.enter_context(listening_socket(options.host, options.port, "--listen"))
        admin = None if options.admin is None else exits.enter_context(listening_socket(*options.admin, "--admin"))
        yield await exits.enter_async_context(_serving(client, options, limits, listening, admin))


@asynccontextmanager
async def _serving(
    client: Client,
    options: ServerOptions,
    limits: Limits | None,
    listening: socket.socket,
    admin: socket.socket | None,
) -> AsyncIterator[GatewayURLs]:
    encrypted = options.tls is not None
    url = f"pulsar{'+ssl' if encrypted else ''}://{options.advertised or shown_address(options.host, listening)}"
    chosen = limits or Limits(client.host.config.client.message_bytes_max)
    connections: dict[asyncio.Task[None], Connection] = {}
    accepted = Connections(within_file_limit(chosen.connections_max), chosen.handshake_s)
    listener = BoundedListener(listening, accepted)

    def end_connections() -> None:
        for one in tuple(connections.values()):
            one.abort()

    turn = ServingTurn(client, options.domain, url, end_connections)
    topics = Topics(client, options.domain, options.creates, turn)
    transactions = Transactions(client, topics, options.domain, chosen.transactions_max)
    producers = TopicProducers(client, topics, TopicEpochs(client), chosen)
    schemas = Schemas(client, topics)
    access = Access(options.tokens)
    scalable = ScalableTopics(topics)
    gateway = Gateway(client, topics, transactions, producers, chosen, access, schemas, scalable, turn)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio calls this in a task"
        peer = writer.get_extra_info("peername")
        connection = connections[task] = Connection(gateway, reader, writer, lambda: accepted.answer(peer))
        try:
            await connection.serve()
        except asyncio.CancelledError:
            pass  # the server ends
        except Exception:
            _LOG.exception("a connection failed")
        finally:
            del connections[task]

    server: asyncio.Server | None = None
    try:
        await turn.start()
        server = await asyncio.start_server(
            connected,
            sock=listener,
            ssl=options.tls,
            ssl_handshake_timeout=None if options.tls is None else chosen.handshake_s,
            backlog=ACCEPTED_AT_ONCE,
        )
        if admin is None or options.admin is None:
            yield GatewayURLs(url, None)
        else:
            app = admin_application(
                client, topics, turn, access, (options.admin[0], options.advertised.rpartition(":")[0])
            )
            address = shown_address(options.admin[0], admin)
            async with serving_admin(app, admin, options.tls):
                yield GatewayURLs(url, f"http{'s' if encrypted else ''}://{address}")
    finally:
        (listener if server is None else server).close()
        for one in tuple(connections.values()):
            one.stop()
        if connections:
            await asyncio.wait(set(connections))
        transactions.close()
        # After the connections: what they had begun to store comes before what the next gateway stores.
        await turn.stop()
