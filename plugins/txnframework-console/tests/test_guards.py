"""Only the owner of the token changes anything, from the console's own pages, under the console's own name."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from console_world import BASE, TOKEN, Served, served

from txnframework import State
from txnframework_console.guards import HEADERS, allowed_hosts, is_allowed, is_token

ORDERS = quote("topic://public/default/orders", safe="")


async def open_transaction(world: Served) -> str:
    await world.client.create_topic("orders")
    txn = world.client.transaction()
    await txn.begin()
    return str(txn.id)


async def post(world: Served, path: str, headers: dict[str, str] | None = None, **fields: str) -> tuple[int, str]:
    answer = await world.browser.post(path, data=fields, headers={"Origin": BASE, **(headers or {})})
    return answer.status_code, answer.text


async def test_an_abort_needs_the_token() -> None:
    """The page that asks for confirmation changes nothing, and neither does a wrong token; the right one aborts."""
    async with served(TOKEN) as world:
        txn_id = await open_transaction(world)
        path = f"/act/abort?id={txn_id}"
        asked = await world.page(path)
        assert "An abort cannot be undone." in asked
        assert f"/act/abort?id={txn_id}" in await world.page(f"/transaction?id={txn_id}")
        for wrong in ({}, {"token": ""}, {"token": "x"}, {"token": TOKEN + "x"}):
            status, said = await post(world, path, **wrong)
            assert status == 403
            assert "This is not the token" in said
        assert await world.client.outcome(txn_id) is State.OPEN
        status, said = await post(world, path, token=TOKEN)
        assert (status, "The transaction is aborted." in said) == (200, True)
        assert await world.client.outcome(txn_id) is State.ABORTED


async def test_read_only() -> None:
    """Without a token there is no action, and no page links to one."""
    async with served() as world:
        txn_id = await open_transaction(world)
        for path in (f"/act/abort?id={txn_id}", f"/act/split?topic={ORDERS}&segment=0"):
            assert "read-only" in await world.page(path, 403)
            assert (await post(world, path, token=""))[0] == 403
        for path in (f"/transaction?id={txn_id}", f"/topic?name={ORDERS}"):
            assert "/act/" not in await world.page(path)
        assert await world.client.outcome(txn_id) is State.OPEN


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8471"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example:8470"},
    ],
)
async def test_another_site_changes_nothing(headers: dict[str, str]) -> None:
    """Not even with the token."""
    async with served(TOKEN) as world:
        txn_id = await open_transaction(world)
        status, _ = await post(world, f"/act/abort?id={txn_id}", headers, token=TOKEN)
        assert status == 403
        assert await world.client.outcome(txn_id) is State.OPEN


async def test_another_name_reads_nothing() -> None:
    """A site that binds its own name to this address gets no page, no live view and no script."""
    async with served() as world:
        for path in ("/", "/live/topics", "/static/console.js"):
            for host in ("evil.example", "evil.example:8470", "127.0.0.1:80", "127.0.0.1.evil.example:8470", ""):
                answer = await world.browser.get(path, headers={"Host": host})
                assert (answer.status_code, "not allowed" in answer.text) == (403, True)
        for host in ("127.0.0.1:8470", "LOCALHOST:8470"):
            assert (await world.browser.get("/static/console.js", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("dest", ["empty", "image", "iframe", ""])
async def test_another_site_loads_nothing(dest: str) -> None:
    """A page of another site cannot use up the live views; a person can follow its link."""
    async with served() as world:
        for site in ("cross-site", "same-site"):
            for path in ("/live/topics", "/topics"):
                foreign = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": dest}
                answer = await world.browser.get(path, headers=foreign)
                assert (answer.status_code, "Another site asked" in answer.text) == (403, True)
            link = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "document"}
            assert (await world.browser.get("/topics", headers=link)).status_code == 200


async def test_headers() -> None:
    """Of pages, refusals and files: no inline script, no frame, no cache."""
    async with served() as world:
        for path, host in (
            ("/", "localhost:8470"),
            ("/", "evil.example"),
            ("/static/console.css", "localhost:8470"),
        ):
            answer = await world.browser.get(path, headers={"Host": host})
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "unsafe" not in HEADERS["content-security-policy"]
        assert "<script>" not in await world.page("/")


async def test_split_and_seek() -> None:
    """Each uses the client's call; what cannot be done is said on the page, with what was typed."""
    async with served(TOKEN) as world:
        client = world.client
        await client.create_topic("orders")
        await client.subscribe("orders", "billing", start="latest")
        async with await client.producer("orders") as orders:
            await orders.send(b"1")
        await client.seek("orders", "billing", "latest")
        split = f"/act/split?topic={ORDERS}&segment=0"
        assert "Segment 0 is split into 1 and 2." in (await post(world, split, token=TOKEN))[1]
        assert len((await client.layout("orders")).active()) == 2
        assert (await post(world, split, token=TOKEN))[0] == 409
        for segment in ("x", "", "-1", "%D9%A0", "%C2%B2", "9" * 19, "9" * 5_000):
            assert (await post(world, f"/act/split?topic={ORDERS}&segment={segment}", token=TOKEN))[0] == 400
        seek = f"/act/seek?topic={ORDERS}&name=billing"
        status, said = await post(world, seek, token=TOKEN, to="yesterday")
        assert (status, "write earliest, latest, or a time" in said) == (400, True)
        assert 'value="yesterday"' in said
        assert (await client.lag("orders", "billing")).messages == 0
        assert (await post(world, seek, token=TOKEN, to=" earliest "))[0] == 200
        assert (await client.lag("orders", "billing")).messages == 1
        assert (await post(world, seek, token=TOKEN, to="2100-01-01T00:00:00Z"))[0] == 200
        assert (await client.lag("orders", "billing")).messages == 0


async def test_settle() -> None:
    """An open transaction cannot be settled; an unknown one is not found; a store that is down is unavailable."""
    async with served(TOKEN) as world:
        txn_id = await open_transaction(world)
        assert (await post(world, f"/act/settle?id={txn_id}", token=TOKEN))[0] == 409
        assert (await post(world, f"/act/settle?id={'0' * 32}", token=TOKEN))[0] == 404
        await world.client.abort(txn_id, operator=True)
        assert "taken effect everywhere" in (await post(world, f"/act/settle?id={txn_id}", token=TOKEN))[1]
        world.cut()
        assert (await post(world, f"/act/settle?id={txn_id}", token=TOKEN))[0] == 503
        world.restore()


@pytest.mark.parametrize("path", ["/act/abort", "/act/nothing?id=1", "/act/split?topic=x"])
async def test_no_such_action(path: str) -> None:
    """An action without its object, or one that does not exist."""
    async with served(TOKEN) as world:
        assert (await post(world, path, token=TOKEN))[0] == 404


async def test_a_large_form() -> None:
    """Is refused before it is read to its end."""
    async with served(TOKEN) as world:
        assert (await post(world, f"/act/abort?id={'0' * 32}", token="x" * 10_000))[0] == 413


@pytest.mark.parametrize(
    ("listening", "further", "netloc", "expected"),
    [
        (("127.0.0.1", 80), (), "localhost", True),
        (("::1", 8470), (), "[::1]:8470", True),
        (("0.0.0.0", 8470), (), "127.0.0.1:8470", False),
        (("0.0.0.0", 8470), ("console.example",), "console.example:443", True),
        (("0.0.0.0", 8470), ("console.example",), "console.example", True),
        (("0.0.0.0", 8470), ("console.example:443",), "console.example:80", False),
    ],
)
def test_hosts(listening: tuple[str, int], further: tuple[str, ...], netloc: str, expected: Any) -> None:
    """The address at which it listens, and further names."""
    assert is_allowed(netloc, allowed_hosts(*listening, further)) is expected


def test_tokens() -> None:
    """White space around a token that was pasted does not matter; no other text is the token."""
    assert is_token(f" {TOKEN}\n", TOKEN)
    assert not is_token("é\udc80", TOKEN)
