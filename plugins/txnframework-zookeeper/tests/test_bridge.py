"""Requests to ZooKeeper through kazoo's thread, and their outcomes when the connection or the session is lost."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import struct
import threading
from multiprocessing.connection import Connection
from typing import Any

import pytest

from txnframework.errors import Closed, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.testing.servers.proxy import Side
from txnframework_zookeeper._options import MetadataOptions, locate
from txnframework_zookeeper.connection._bridge import Inbox
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._requests import (
    BadVersion,
    CheckNode,
    CreateNode,
    DeleteNode,
    Exists,
    MultiFailed,
    NodeExists,
    NoNode,
    NotSent,
    SetNode,
)
from txnframework_zookeeper.connection._session import ReplyFuture, SessionState
from txnframework_zookeeper.connection._sockets import Doorbell, SessionSocket, wait_for_data, wait_for_room
from txnframework_zookeeper.testing._clients import WAIT_S, Seen, expire, opened, wait_for_connections
from txnframework_zookeeper.testing._proxies import reply_proxy
from txnframework_zookeeper.testing.servers.frames import Operation
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper as Ensemble


async def test_what_is_written_is_read(url: str) -> None:
    """Nodes are created, written, listed and removed; the ops of a multi apply together; a missing node is None."""
    async with opened(url) as zookeeper:
        await zookeeper.multi([CreateNode("/a", b"1"), CreateNode("/a/b"), CreateNode("/a/c", b"\0\xff")])
        written = await zookeeper.multi([SetNode("/a", b"2", 0), CheckNode("/a/b", 0), DeleteNode("/a/c", 0)])
        found = await zookeeper.get("/a")
        assert found is not None
        assert (found.data, found.stat.version) == (b"2", 1)
        assert found.stat.czxid < written == found.stat.mzxid
        assert await zookeeper.children("/a") == ["b"]
        assert await zookeeper.get("/a/b") == (b"", await zookeeper.exists("/a/b"))
        assert [await zookeeper.get("/x"), await zookeeper.exists("/x"), await zookeeper.children("/x")] == [None] * 3


async def test_a_multi_that_is_refused_says_which_op_failed(url: str) -> None:
    """Nothing is changed, and the error names the failed op and the reason."""
    async with opened(url) as zookeeper:
        await zookeeper.multi([CreateNode("/a")])
        good = SetNode("/a", b"changed")
        for bad, cause in (
            (CreateNode("/a"), NodeExists),
            (SetNode("/a", b"", 7), BadVersion),
            (CheckNode("/b"), NoNode),
            (CreateNode("/b/c"), NoNode),
            (DeleteNode("/a", 7), BadVersion),
        ):
            with pytest.raises(MultiFailed, match="op 1 ") as refused:
                await zookeeper.multi([good, bad, good])
            assert (refused.value.index, refused.value.op) == (1, bad)
            assert isinstance(refused.value.cause, cause)
        found = await zookeeper.get("/a")
        assert found is not None
        assert found.data == b""


async def test_a_connection_that_is_lost_is_told_of_and_so_is_its_return(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line for the loss and one for its end, because watches are delayed meanwhile."""
    async with reply_proxy(url) as (proxy, through), opened(through) as zookeeper:
        seen = Seen(zookeeper)
        proxy.proxy.cut()
        await seen.until(SessionState.SUSPENDED)
        proxy.let_through()
        await seen.until(SessionState.SUSPENDED, SessionState.BACK)
        shown = zookeeper.session.shown_url
        assert [record.getMessage() for record in caplog.records if record.name.endswith("._session")] == [
            f"the connection to {shown} is lost, and is being made again",
            f"{shown} answers again",
        ]


async def test_many_requests_are_under_way_at_once_and_no_more_than_allowed(url: str) -> None:
    """All requests are answered; a cancelled one frees its slot."""
    async with opened(url, MetadataOptions(requests_max=8)) as zookeeper:
        await zookeeper.multi([CreateNode("/a")])
        tasks = [asyncio.ensure_future(zookeeper.multi([SetNode("/a", b"%d" % n)])) for n in range(400)]
        tasks += [asyncio.ensure_future(zookeeper.get("/a")) for _ in range(400)]
        for task in tasks[::7]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        found = await zookeeper.get("/a")
        assert found is not None
        assert found.data == b"398"  # 399 was cancelled
        assert zookeeper._slots._value == 8


async def test_what_a_server_does_not_take_yet_holds_nobody_up(server: Ensemble) -> None:
    """The loop continues, and all requests arrive in order."""
    async with opened(f"zookeeper://{server.hosts}/a") as zookeeper:
        await zookeeper.multi([CreateNode("/a")])
        server.servers[0].pause()
        # More than any pair of sockets holds.
        values = [bytes((n,)) * 900_000 for n in range(16)]
        ops = [SetNode("/a", value, version) for version, value in enumerate(values)]
        writes = [asyncio.ensure_future(zookeeper.multi([op])) for op in ops]
        for _ in range(3):
            await asyncio.sleep(0)
        assert not any(write.done() for write in writes)
        server.servers[0].resume()
        await asyncio.gather(*writes)
        found = await zookeeper.get("/a")
        assert found is not None
        assert (found.data, found.stat.version) == (values[-1], len(values))


async def test_a_loop_that_is_held_up_keeps_its_session(url: str) -> None:
    """The loop is blocked for longer than the session timeout: server messages are read, and heartbeats are sent."""
    async with opened(url, MetadataOptions(session_ttl_ms=2_400)) as zookeeper:
        await zookeeper.multi([CreateNode("/e", b"", is_ephemeral=True)])
        session, connections = zookeeper.session.session_id, zookeeper.session.connections
        read = asyncio.ensure_future(zookeeper.get("/e"))
        await asyncio.sleep(0)
        threading.Event().wait(2 * zookeeper.session.timeout_ms / 1000)
        assert await read is not None
        assert await zookeeper.exists("/e") is not None
        assert (zookeeper.session.session_id, zookeeper.session.connections) == (session, connections)


async def test_a_client_has_one_thread(url: str) -> None:
    """Only kazoo's connection has a thread."""
    before = set(threading.enumerate())
    async with opened(url):
        assert len(set(threading.enumerate()) - before) == 1


async def test_a_large_answer_and_a_large_request_arrive_whole(url: str) -> None:
    """Data larger than one read of a socket arrives, in both directions."""
    async with opened(url) as zookeeper:
        data = bytes(range(256)) * 3000
        await zookeeper.multi([CreateNode("/a", data), CreateNode("/b")])
        for part in range(0, 3000, 500):
            await zookeeper.multi([CreateNode(f"/b/{part + n:0100d}") for n in range(500)])
        found, names = await asyncio.gather(zookeeper.get("/a"), zookeeper.children("/b"))
        assert found is not None
        assert found.data == data
        assert names is not None
        assert sorted(map(int, names)) == list(range(3000))


async def test_a_broken_connection_is_made_again_in_the_same_session(url: str) -> None:
    """Reads are repeated; a write in progress was applied, or its outcome is unknown."""
    async with (
        reply_proxy(url) as (proxy, through),
        opened(through, MetadataOptions(requests_max=64)) as zookeeper,
    ):
        await zookeeper.multi([CreateNode("/a"), CreateNode("/b")])
        session = zookeeper.session.session_id
        seen = Seen(zookeeper)
        writes = [asyncio.ensure_future(zookeeper.multi([CreateNode(f"/b/{n}")])) for n in range(600)]
        reads = [asyncio.ensure_future(zookeeper.get("/a")) for _ in range(600)]
        await writes[100]
        proxy.proxy.cut_after(0, Side.SERVER)
        await seen.until(SessionState.SUSPENDED)
        proxy.let_through()
        assert None not in await asyncio.gather(*reads)
        ends = await asyncio.gather(*writes, return_exceptions=True)
        await seen.until(SessionState.SUSPENDED, SessionState.BACK)
        assert zookeeper.session.session_id == session
        names = await zookeeper.children("/b")
        assert names is not None
        lost = {str(n) for n, end in enumerate(ends) if isinstance(end, OutcomeUnknown)}
        assert lost
        assert {str(n) for n in range(600)} - lost <= set(names)
        # What was lost is decided: nothing is done later.
        await zookeeper.multi([CreateNode("/c")])
        assert set(await zookeeper.children("/b") or ()) == set(names)


async def test_the_end_of_a_session_is_told_and_the_next_one_goes_on(url: str) -> None:
    """An ephemeral node is removed with the session; reads and writes continue in the next one."""
    async with opened(url) as zookeeper:
        await zookeeper.multi([CreateNode("/a"), CreateNode("/e", b"", is_ephemeral=True)])
        session = zookeeper.session.session_id
        found = await zookeeper.exists("/e")
        assert found is not None
        assert found.ephemeralOwner == session
        await expire(zookeeper)
        assert zookeeper.session.session_id != session
        assert await zookeeper.exists("/e") is None
        await zookeeper.multi([SetNode("/a", b"again")])


async def test_a_silent_server_is_noticed_while_there_is_something_to_send(server: Ensemble) -> None:
    """A server that receives requests and answers none is left after a part of the session's timeout."""
    options = MetadataOptions(session_ttl_ms=1_200)
    async with opened(f"zookeeper://{server.hosts}/a", options) as zookeeper:
        wait_for_connections(zookeeper, 1_000)
        seen = Seen(zookeeper)
        server.servers[0].pause()

        async def nag() -> None:
            while True:
                read = asyncio.ensure_future(zookeeper.get("/"))
                read.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.sleep(0.1)

        nagging = asyncio.ensure_future(nag())
        try:
            await seen.until(SessionState.SUSPENDED)
            with pytest.raises(Unavailable, match="no connection"):
                await zookeeper.multi([CreateNode("/b")])
        finally:
            nagging.cancel()
            server.servers[0].resume()
        # How soon it is tried again depends on how long it was away.
        await seen.wait_until_connected()
        assert await zookeeper.get("/") is not None


async def test_a_request_between_two_connections_is_not_sent(server: Ensemble) -> None:
    """Its caller found the last connection. No server answers the next one yet, and it is made all the same."""
    options = MetadataOptions(session_ttl_ms=1_200)
    async with opened(f"zookeeper://{server.hosts}/a", options) as zookeeper:
        wait_for_connections(zookeeper, 1_000)
        seen = Seen(zookeeper)
        server.servers[0].pause()
        try:
            zookeeper.session.cut()
            await seen.until(SessionState.SUSPENDED)
            reply = ReplyFuture(asyncio.get_running_loop())
            zookeeper.session.submit(Exists("/a"), reply)
            assert isinstance(await asyncio.wait_for(reply.answer, WAIT_S), NotSent)
        finally:
            server.servers[0].resume()
        await seen.wait_until_connected()
        assert await zookeeper.get("/") is not None


async def test_an_answer_that_kazoo_does_not_expect_leaves_nobody_waiting(url: str) -> None:
    """kazoo's thread ends. That request and later ones are lost; another client continues in the same session."""
    async with reply_proxy(url) as (proxy, through), opened(through) as zookeeper:
        await zookeeper.multi([CreateNode("/e", b"", is_ephemeral=True)])
        session = zookeeper.session.session_id
        seen = Seen(zookeeper)
        proxy.lose_reply_to(Operation.MULTI)
        # What is answered next is then not what kazoo waits for.
        writes = [asyncio.ensure_future(zookeeper.multi([CreateNode(f"/{n}")])) for n in range(3)]
        ends = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), WAIT_S)
        assert [type(end) for end in ends] == [OutcomeUnknown] * 3
        await seen.until(SessionState.SUSPENDED, SessionState.BACK)
        assert zookeeper.session.session_id == session
        found = await zookeeper.exists("/e")
        assert found is not None
        assert found.ephemeralOwner == session


def test_one_wake_up_brings_many_answers() -> None:
    """The loop is woken once for all answers received so far, and delivers them in order."""

    class CountingLoop(asyncio.SelectorEventLoop):
        wakes = 0

        def call_soon_threadsafe(self, *arguments: Any, **context: Any) -> Any:
            self.wakes += 1
            return super().call_soon_threadsafe(*arguments, **context)

    loop = CountingLoop()
    inbox = Inbox(loop)
    received: list[int] = []
    for turn in range(2):
        for number in range(100):
            inbox.put(received.append, number)
        loop.run_until_complete(asyncio.sleep(0))
        assert (loop.wakes, received) == (turn + 1, [*range(100)] * (turn + 1))
    loop.close()


def test_nothing_is_kept_for_a_loop_that_was_closed() -> None:
    """Neither later answers nor those with a pending wake-up are kept."""
    loop = asyncio.new_event_loop()
    inbox = Inbox(loop)
    inbox.put(print, "on its way")
    loop.close()
    for _ in range(3):
        inbox.put(print, "too late")
    assert not inbox._waiting


async def test_a_closed_client_says_so(url: str) -> None:
    """Pending and later calls get an error that says so; closing may be repeated."""
    async with opened(url) as zookeeper:
        reads = [asyncio.ensure_future(zookeeper.get("/")) for _ in range(10)]
        await asyncio.sleep(0)
        await zookeeper.close()
        for end in await asyncio.gather(*reads, return_exceptions=True):
            assert not isinstance(end, TxnFrameworkError) or isinstance(end, Closed)
        with pytest.raises(Closed, match="was closed"):
            await zookeeper.get("/")
        with pytest.raises(Closed, match="was closed"):
            await zookeeper.multi([CreateNode("/a")])
        await zookeeper.close()


def test_a_client_belongs_to_its_event_loop(url: str) -> None:
    """Using the client in another event loop raises an error instead of hanging."""
    first = asyncio.new_event_loop()
    zookeeper = first.run_until_complete(ZooKeeperClient.open(locate(url), MetadataOptions()))
    try:
        with pytest.raises(Closed, match="belongs to the event loop"):
            asyncio.run(zookeeper.get("/"))
    finally:
        first.run_until_complete(zookeeper.close())
        first.run_until_complete(first.shutdown_default_executor())
        first.close()


async def test_a_forked_child_cannot_use_its_parents_client(url: str) -> None:
    """The child gets an error; the parent's session is not affected."""
    async with opened(url) as zookeeper:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_use, args=(zookeeper, there))
        child.start()
        said = await asyncio.to_thread(here.poll, WAIT_S) and here.recv()
        await asyncio.to_thread(child.join)
        assert "before this process was forked" in said
        session = zookeeper.session.session_id
        await zookeeper.multi([CreateNode("/a")])
        assert zookeeper.session.session_id == session


def _use(zookeeper: ZooKeeperClient, there: Connection) -> None:
    async def use() -> str:
        with pytest.raises(Closed) as refused:
            await zookeeper.get("/")
        await zookeeper.close()
        return str(refused.value)

    asyncio.events._set_running_loop(None)
    there.send(asyncio.run(use()))


async def test_a_listener_that_fails_keeps_nobody_from_an_answer(url: str) -> None:
    """Events of kazoo's thread are delivered to the loop one by one; the failure is reported to the loop."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    async with opened(url) as zookeeper:
        seen = Seen(zookeeper)

        def fail(_: str) -> None:
            raise RuntimeError("a listener's own")

        seen.node_changed = fail  # type: ignore[method-assign]
        paths = ["/a", "/b", "/c"]
        for path in paths:
            await zookeeper.watch_node(path)
        await asyncio.wait_for(zookeeper.multi([*map(CreateNode, paths)]), WAIT_S)
        await asyncio.wait_for(zookeeper.sync(), WAIT_S)
        assert len(told) == len(paths)


async def test_requests_of_one_turn_wake_the_waiting_thread_once() -> None:
    """The thread is woken after the turn, and reads one byte for each request."""
    bell = Doorbell(asyncio.get_running_loop())
    try:
        assert bell.recv(1) == b""
        waiting = asyncio.ensure_future(asyncio.to_thread(wait_for_data, [bell], WAIT_S))
        await asyncio.sleep(0.01)
        for _ in range(3):
            bell.send(b"\0")
        assert await waiting == [bell]
        assert [bell.recv(1) for _ in range(4)] == [b"\0", b"\0", b"\0", b""]
        # Another thread wakes it at once, also while the loop does nothing.
        waiter = threading.Timer(0.01, bell.send, [b"\0"])
        waiter.start()
        assert wait_for_data([bell], WAIT_S) == [bell]
        waiter.join()
        assert bell.recv(1) == b"\0"
        assert wait_for_data([bell], 0.01) == []
    finally:
        bell.close()
        bell.close()


def test_a_session_socket_keeps_what_it_received_and_sends_when_nothing_is_left_to_do() -> None:
    """Replies are taken from the kernel at once; a broken connection does not hide the last ones."""
    ours, theirs = socket.socketpair()
    connected = SessionSocket(ours)
    connected.setblocking(False)
    first = struct.pack("!iii", 16, 0, 4_000) + b"12345678"
    try:
        theirs.sendall(first[:5])
        assert connected.recv(4) == first[:4]
        assert (connected.pending(), connected.agreed_ms) == (1, None)
        assert connected.recv(4) == first[4:5]
        theirs.sendall(first[5:] + b"next")
        assert connected.recv(15) == first[5:]
        assert (connected.pending(), connected.agreed_ms) == (4, 4_000)
        connected.send(b"re")
        connected.send(memoryview(b"quest"))
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
        assert wait_for_data([connected], 0) == []
        assert theirs.recv(100) == b"request"
        theirs.sendall(b"last")
        theirs.close()
        connected.send(b"lost")
        assert wait_for_data([connected], WAIT_S) == [connected]
        assert [connected.recv(4) for _ in range(3)] == [b"next", b"last", b""]
    finally:
        connected.close()
        theirs.close()


def test_a_session_socket_makes_kazoo_wait_while_the_server_takes_nothing() -> None:
    """Unsent requests are bounded; they are sent in their order once the server reads."""
    ours, theirs = socket.socketpair()
    connected = SessionSocket(ours)
    connected.setblocking(False)
    sent = b""
    try:
        while wait_for_room(connected, 0.01):
            piece = bytes([len(sent) % 251]) * 50_000
            sent += piece
            connected.send(piece)
        received = b""
        while len(received) < len(sent):
            received += theirs.recv(65_536)
            wait_for_data([connected], 0)
        assert received == sent
    finally:
        connected.close()
        theirs.close()
