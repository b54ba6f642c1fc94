"""The admin REST API, and Pulsar's own client when it finds topics through it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pulsar
import pytest
from gateway_world import PATIENCE_MS, PATIENCE_S, World

TOKEN = "a tokén of this test"
ORDERS = "persistent://public/default/orders"
TOPICS = "/admin/v2/persistent/public/default"
LATER_MS = 4_102_444_800_000
EARLIEST = {"ledgerId": -1, "entryId": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World("topic", admin=("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
def admin(world: World) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=world.admin_url, timeout=PATIENCE_S) as opened:
        yield opened


def sent(world: World, count: int) -> list[pulsar.MessageId]:
    producer = world.connect().create_producer(ORDERS)
    return [producer.send(b"%d" % number) for number in range(count)]


def place(message: pulsar.MessageId) -> dict[str, int]:
    return {"ledgerId": message.ledger_id(), "entryId": message.entry_id(), "partitionIndex": -1}


def backlog(admin: httpx.Client, name: str) -> int:
    found: int = admin.get(f"{TOPICS}/orders/stats").json()["subscriptions"][name]["msgBacklog"]
    return found


class TestTopics:
    def test_life_of_a_topic(self, admin: httpx.Client) -> None:
        assert admin.put(f"{TOPICS}/orders").status_code == 204
        again = admin.put(f"{TOPICS}/orders")
        assert again.status_code == 409
        assert "orders" in again.json()["reason"]
        for listed in (TOPICS, "/admin/v2/namespaces/public/default/topics"):
            assert admin.get(listed).json() == [ORDERS]
        assert admin.get("/admin/v2/non-persistent/public/default").json() == []
        assert admin.get(f"{TOPICS}/partitioned").json() == []
        assert admin.get(f"{TOPICS}/orders/partitions").json() == {"partitions": 0}
        assert admin.get("/admin/v2/tenants").json() == ["public"]
        assert admin.get("/admin/v2/namespaces/public").json() == ["public/default"]
        assert admin.delete(f"{TOPICS}/orders").status_code == 204
        assert admin.get(TOPICS).json() == []
        assert admin.delete(f"{TOPICS}/orders").status_code == 404

    def test_partitions_become_segments(self, world: World, admin: httpx.Client) -> None:
        assert admin.put(f"{TOPICS}/orders/partitions", json=3).status_code == 204
        layout = world.run(world.client.layout(world.topic("orders")))
        assert len(layout.active()) == 3
        assert admin.put(f"{TOPICS}/others/partitions", content="three").status_code == 400
        with_properties = {"partitions": 2, "properties": {}}
        assert admin.put(f"{TOPICS}/others/partitions", json=with_properties).status_code == 204
        assert len(world.run(world.client.layout(world.topic("others"))).active()) == 2

    def test_partitions_of_a_missing_topic(self, admin: httpx.Client) -> None:
        path = f"{TOPICS}/orders/partitions"
        assert admin.get(path).status_code == 404
        assert admin.get(path, params={"checkAllowAutoCreation": "true"}).json() == {"partitions": 0}

    def test_topic_in_use(self, admin: httpx.Client) -> None:
        admin.put(f"{TOPICS}/orders")
        admin.put(f"{TOPICS}/orders/subscription/billing", json=EARLIEST)
        assert admin.delete(f"{TOPICS}/orders").status_code == 412
        assert admin.delete(f"{TOPICS}/orders", params={"force": "true"}).status_code == 204

    def test_statistics_and_last_message(self, world: World, admin: httpx.Client) -> None:
        admin.put(f"{TOPICS}/orders")
        assert admin.get(f"{TOPICS}/orders/lastMessageId").json() == EARLIEST | {"partitionIndex": -1}
        *_, last = sent(world, 3)
        assert admin.get(f"{TOPICS}/orders/lastMessageId").json() == place(last)
        assert admin.get(f"{TOPICS}/orders/stats").json()["msgInCounter"] == 3
        assert admin.get(f"{TOPICS}/missing/stats").status_code == 404

    def test_namespaces_and_tenants_need_not_be_created(self, admin: httpx.Client) -> None:
        assert admin.put("/admin/v2/tenants/shop", json={"allowedClusters": ["standalone"]}).status_code == 204
        assert admin.put("/admin/v2/namespaces/shop/sales").status_code == 204
        assert admin.put("/admin/v2/persistent/shop/sales/orders").status_code == 204
        assert admin.get("/admin/v2/namespaces/shop").json() == ["shop/sales"]
        assert admin.put(f"/admin/v2/namespaces/shop/{'s' * 1_000}").status_code == 400

    def test_deletion_of_a_namespace(self, world: World, admin: httpx.Client) -> None:
        world.run(world.client.create_topic("persistent://public/default/orders"))  # of the domain that is not served
        for name in ("orders", "payments"):
            admin.put(f"{TOPICS}/{name}")
        admin.put(f"{TOPICS}/orders/subscription/billing")
        namespace = "/admin/v2/namespaces/public/default"
        assert admin.delete(namespace).status_code == 409
        assert len(admin.get(TOPICS).json()) == 2
        assert admin.delete(namespace, params={"force": "true"}).status_code == 204
        assert admin.get(TOPICS).json() == []
        assert len(world.run(world.client.list_topics())) == 1


class TestSubscriptions:
    def test_life_of_a_subscription(self, world: World, admin: httpx.Client) -> None:
        ids = sent(world, 5)
        path = f"{TOPICS}/orders/subscription"
        assert admin.put(f"{path}/all", json=EARLIEST).status_code == 204
        assert admin.put(f"{path}/new", json=LATEST).status_code == 204
        assert admin.put(f"{path}/default").status_code == 204
        assert admin.put(f"{path}/some", json=place(ids[3])).status_code == 204
        assert admin.put(f"{path}/all", json=LATEST).status_code == 409
        assert admin.get(f"{TOPICS}/orders/subscriptions").json() == ["all", "default", "new", "some"]
        assert [backlog(admin, one) for one in ("all", "default", "new", "some")] == [5, 0, 0, 2]
        assert admin.delete(f"{path}/all").status_code == 204
        assert admin.get(f"{TOPICS}/orders/subscriptions").json() == ["default", "new", "some"]
        for unknown in (admin.delete(f"{path}/all"), admin.post(f"{path}/all/skip_all")):
            assert unknown.status_code == 404

    def test_moves(self, world: World, admin: httpx.Client) -> None:
        ids = sent(world, 5)
        path = f"{TOPICS}/orders/subscription/billing"
        admin.put(path, json=EARLIEST)
        moves: list[tuple[str, Any, int]] = [
            ("skip_all", None, 0),
            ("resetcursor", place(ids[1]), 4),
            ("resetcursor", LATEST, 0),
            ("resetcursor/0", None, 5),
            (f"resetcursor/{LATER_MS}", None, 0),
            ("resetcursor", EARLIEST, 5),
        ]
        for move, body, expected in moves:
            assert admin.post(f"{path}/{move}", json=body).status_code == 204
            assert backlog(admin, "billing") == expected, move
        assert admin.post(f"{path}/resetcursor", json=place(ids[1]) | {"excluded": True}).status_code == 400
        assert admin.post(f"{path}/resetcursor", content=b"{").status_code == 400
        assert admin.post(f"{path}/resetcursor", content=b" " * 100_000).status_code == 400
        assert backlog(admin, "billing") == 5

    def test_subscription_with_a_consumer(self, world: World, admin: httpx.Client) -> None:
        sent(world, 1)
        consumer = world.connect().subscribe(ORDERS, "billing", initial_position=pulsar.InitialPosition.Earliest)
        consumer.receive(PATIENCE_MS)
        path = f"{TOPICS}/orders/subscription/billing"
        assert admin.delete(path).status_code == 412
        assert admin.delete(path, params={"force": "true"}).status_code == 204


class TestNames:
    @pytest.mark.parametrize(
        ("sent", "name"),
        [
            ("one%2Ftwo", "one/two"),
            ("one%252Ftwo", "one/two"),
            ("a%20b", "a b"),
            ("a%2Bb%252Bc", "a b+c"),
            ("%C3%A9%", "é%"),
        ],
    )
    def test_escaped_names(self, admin: httpx.Client, sent: str, name: str) -> None:
        admin.put(f"{TOPICS}/orders")
        assert admin.put(f"{TOPICS}/orders/subscription/{sent}").status_code == 204
        assert admin.get(f"{TOPICS}/orders/subscriptions").json() == [name]
        assert admin.post(f"{TOPICS}/orders/subscription/{sent}/skip_all").status_code == 204
        assert admin.delete(f"{TOPICS}/orders/subscription/{sent}").status_code == 204
        assert admin.get(f"{TOPICS}/orders/subscriptions").json() == []

    @pytest.mark.parametrize(("sent", "name"), [("a+b%2Bc%25", "a b+c%"), ("a%20%C3%A9", "a é")])
    def test_escaped_topics(self, admin: httpx.Client, sent: str, name: str) -> None:
        assert admin.put(f"{TOPICS}/{sent}").status_code == 204
        assert admin.get(TOPICS).json() == [f"persistent://public/default/{name}"]
        assert admin.delete(f"{TOPICS}/{sent}").status_code == 204

    def test_escaped_slash_divides_nothing(self, admin: httpx.Client) -> None:
        admin.put(f"{TOPICS}/orders/subscription/billing")
        for name in ("orders%2Fsubscription%2Fbilling", "orders%2Fpartitions"):
            assert admin.delete(f"{TOPICS}/{name}", params={"force": "true"}).status_code == 412
        assert admin.get(f"{TOPICS}/orders/subscriptions").json() == ["billing"]

    def test_name_that_is_not_text(self, admin: httpx.Client) -> None:
        assert admin.put(f"{TOPICS}/orders%FF").status_code == 412
        assert admin.get(TOPICS).json() == []


class TestNumbers:
    @pytest.mark.parametrize("number", ["-1", "9" * 30, "9" * 5_000, "x", "1.5", "%FF"])
    def test_numbers_in_paths(self, admin: httpx.Client, number: str) -> None:
        admin.put(f"{TOPICS}/orders/subscription/billing")
        assert 400 <= admin.post(f"{TOPICS}/orders/subscription/billing/resetcursor/{number}").status_code < 500
        assert 400 <= admin.get(f"/admin/v3/transactions/slowTransactions/{number}").status_code < 500
        for ids in (f"0/{number}", f"{number}/0"):
            assert 400 <= admin.get(f"/admin/v3/transactions/transactionMetadata/{ids}").status_code < 500

    @pytest.mark.parametrize("body", [{"ledgerId": 2**70}, {"entryId": 2**64}, {"batchIndex": 2**31}])
    def test_numbers_in_bodies(self, admin: httpx.Client, body: dict[str, int]) -> None:
        admin.put(f"{TOPICS}/orders/subscription/billing")
        assert admin.post(f"{TOPICS}/orders/subscription/billing/resetcursor", json=body).status_code == 400


class TestTransactions:
    def test_open_transaction(self, world: World, admin: httpx.Client) -> None:
        wire = world.wire()
        wire.greet()
        begun = wire.request("new_txn", "new_txn_response", tc_id=0, timeout_ms=PATIENCE_MS)
        (listed,) = admin.get("/admin/v3/transactions/slowTransactions/0").json().values()
        path = f"/admin/v3/transactions/transactionMetadata/{begun.txnid_most_bits}/{begun.txnid_least_bits}"
        assert admin.get(path).json() == listed
        assert (listed["status"], listed["timeoutAt"]) == ("OPEN", PATIENCE_MS)
        assert admin.get("/admin/v3/transactions/slowTransactions/3600000").json() == {}
        assert admin.get("/admin/v3/transactions/coordinatorStats").json()["0"]["ongoingTxnSize"] == 1
        assert admin.get("/admin/v3/transactions/coordinatorStats?coordinatorId=0").json()["ongoingTxnSize"] == 1
        (coordinator,) = admin.get("/admin/v3/transactions/coordinators").json()
        assert coordinator == {"id": 0, "brokerServiceUrl": world.url}
        for unknown in ("0/999999", "7/1", "0/-1", f"0/{2**63 - 1}"):
            assert admin.get(f"/admin/v3/transactions/transactionMetadata/{unknown}").status_code == 404

    def test_participants(self, world: World, admin: httpx.Client) -> None:
        async def begin() -> str:
            await world.client.create_topic(world.topic("orders"))
            producer = await world.client.producer(world.topic("orders"))
            txn = world.client.transaction()
            await txn.begin()
            await producer.send(b"1", txn=txn)
            return str(txn.id)

        world.run(begin())
        (listed,) = admin.get("/admin/v3/transactions/slowTransactions/0").json().values()
        assert listed["producedPartitions"] == {ORDERS: {}}
        assert admin.get(f"{TOPICS}/orders/stats").json()["waitingForTransactions"] == 1


class TestLookup:
    def test_client_that_finds_topics_by_http(self, world: World) -> None:
        client = world.connect(world.admin_url)
        producer = client.create_producer(ORDERS)
        consumer = client.subscribe(ORDERS, "billing", initial_position=pulsar.InitialPosition.Earliest)
        producer.send(b"tea")
        assert consumer.receive(PATIENCE_MS).data() == b"tea"
        assert client.get_topic_partitions(ORDERS) == [ORDERS]

    def test_other_gateway_sends_clients_to_the_one_that_serves(self, world: World) -> None:
        with World("topic", admin=("127.0.0.1", 0), stores=world.stores) as other:
            found = httpx.get(f"{other.admin_url}/lookup/v2/topic/persistent/public/default/orders").json()
            assert found["brokerUrl"] == world.url
            assert httpx.get(f"{other.admin_url}/admin/v2/clusters/standalone").json()["brokerServiceUrl"] == world.url


class TestAccess:
    def test_tokens(self) -> None:
        with World("topic", admin=("127.0.0.1", 0), tokens=(TOKEN,)) as world:
            for headers in ({}, {"authorization": "Bearer another token"}):
                refused = httpx.get(world.admin_url + TOPICS, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert TOKEN not in refused.text
            for scheme in ("Bearer", "bearer"):
                headers = {"authorization": f"{scheme} {TOKEN}".encode(), "host": "any.example"}
                assert httpx.get(world.admin_url + TOPICS, headers=headers).json() == []

    @pytest.mark.parametrize("header", [{"origin": "https://other.example"}, {"sec-fetch-site": "same-origin"}])
    def test_no_browsers(self, admin: httpx.Client, header: dict[str, str]) -> None:
        assert admin.post(f"{TOPICS}/orders/subscription/billing/skip_all", headers=header).status_code == 403
        assert admin.get("/admin/v2/brokers/health", headers={"sec-fetch-site": "none"}).text == "ok"

    def test_no_sites_that_lead_to_this_machine(self) -> None:
        """A browser that visits a site whose name has the address of the gateway sends that name."""
        with World("topic", admin=("127.0.0.1", 0), advertised="gateway.example:6650") as world:

            def status(host: str) -> int:
                return httpx.get(world.admin_url + TOPICS, headers={"host": host}).status_code

            for foreign in ("other.example", "other.example:8080", "localhost.other.example", ""):
                assert status(foreign) == 403
            for own in ("localhost:8080", "LOCALHOST", "192.0.2.7:8080", "[::1]", "[::1]:8080", "gateway.example:8080"):
                assert status(own) == 200

    def test_what_is_not_there(self, admin: httpx.Client) -> None:
        for method, path in (("GET", "/admin/v2/functions"), ("PATCH", f"{TOPICS}/orders")):
            refused = admin.request(method, path)
            assert refused.status_code in (404, 405)
            assert refused.json() == {"reason": f"the gateway has no {method} {path}"}


class TestEnd:
    def test_request_in_progress(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        """A gateway that stops answers a request whose body does not end."""
        world.run(world.client.create_topic(world.topic("orders")))
        host, port = world.admin_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
            head = f"PUT {TOPICS}/orders/subscription/billing HTTP/1.1\r\nHost: {host}\r\n"
            connection.sendall(f"{head}Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            answered = connection.makefile("rb")
            assert b" 100 " in answered.readline()
            connection.sendall(b"1\r\n{\r\n")
            world.stop()
            found = answered.read()
        assert b" 503 " in found
        assert found.endswith(b'{"reason":"the gateway ends"}')
        assert "Traceback" not in caplog.text
        assert not [one for one in caplog.records if one.exc_info]
