"""Authentication and its errors; passwords are never printed or logged."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from txnframework.errors import ConfigurationError, InvalidInput, Unavailable
from txnframework_zookeeper._options import PASSWORD_VARIABLE, MetadataOptions, check, locate
from txnframework_zookeeper.connection._requests import CreateNode
from txnframework_zookeeper.testing._clients import opened, with_client
from txnframework_zookeeper.testing.servers.security import sasl_users, tls
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper as Ensemble

SECRET = "s3cret-of-alice"


def with_login(url: str, login: str) -> str:
    return url.replace("zookeeper://", f"zookeeper://{login}@")


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(1)
    for name in ("kazoo", "kazoo.client", "txnframework_zookeeper.kazoo"):
        logging.getLogger(name).setLevel(1)
    return caplog


def test_what_a_login_makes_is_its_own(url: str, everything_logged: pytest.LogCaptureFixture) -> None:
    """Another login, and an anonymous one, are refused; the password is never logged."""

    async def main() -> None:
        async with opened(with_login(url, f"alice:{SECRET}")) as alice:
            await alice.multi([CreateNode("/a", b"hers")])
            await alice.get("/a")
            assert SECRET not in repr(vars(alice.session)) + repr(alice.session.servers)
        for other in (url, with_login(url, "alice:wrong")):
            with pytest.raises(InvalidInput, match=r"does not let this login (see|read)") as refused:
                async with opened(other):
                    pass
            assert SECRET not in str(refused.value)
            assert "wrong" not in str(refused.value)
        async with opened(with_login(url, f"alice:{SECRET}")) as alice:
            assert await alice.get("/a") is not None

    asyncio.run(main())
    assert everything_logged.records
    assert SECRET not in everything_logged.text


async def test_a_chroot_below_what_its_login_may_not_see(url: str) -> None:
    """The chroot is opened, and another is created below it; if creation is forbidden, the error names the node."""
    host, _, top = url.removeprefix("zookeeper://").partition("/")
    others, hers = [make_digest_acl("bob", "his", all=True)], [make_digest_acl("alice", SECRET, all=True)]

    def prepare(client: KazooClient) -> None:
        client.create(f"/{top}", acl=[*others, make_digest_acl("alice", SECRET, delete=True)])
        client.add_auth("digest", "bob:his")
        client.create(f"/{top}/hers", acl=hers)

    await asyncio.to_thread(with_client, host, None, prepare)
    login = with_login(url, f"alice:{SECRET}")
    for chroot in ("hers", "hers/another/one"):
        async with opened(f"{login}/{chroot}") as alice:
            await alice.multi([CreateNode("/a")])
            assert await alice.exists("/a") is not None
    with pytest.raises(InvalidInput, match=f"does not let this login make the chroot /{top}/made;"):
        async with opened(f"{login}/made"):
            pass
    with pytest.raises(InvalidInput, match=f"does not let this login see the chroot /{top};"):
        async with opened(login):
            pass


def test_sasl_lets_in_who_knows_the_password(
    tmp_path: Path, everything_logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server requires the login; a wrong one is refused at once, with the setting to check."""
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    options = MetadataOptions(login="sasl-digest-md5", connect_timeout_ms=60_000)
    with Ensemble(tmp_path, setup=sasl_users(tmp_path, {"alice": SECRET})) as server:
        url = f"zookeeper://{server.hosts}/a"

        async def main() -> None:
            async with opened(with_login(url, "alice"), options) as alice:
                await alice.multi([CreateNode("/a", b"hers")])
                alice.session.cut()
                assert await alice.get("/a") is not None
            with pytest.raises(ConfigurationError, match="refused the login"):
                async with opened(with_login(url, "alice:wrong"), options):
                    pass
            with pytest.raises(ConfigurationError, match="SASL"):
                async with opened(url):
                    pass

        asyncio.run(main())
    assert SECRET not in everything_logged.text


def test_tls_is_used_and_the_server_has_to_be_known(tmp_path: Path) -> None:
    """A certificate of an unknown authority is refused, and the error says so."""
    made = tls(tmp_path)
    trusting = MetadataOptions(tls=True, tls_ca=str(made.certificate), connect_timeout_ms=60_000)
    with Ensemble(tmp_path / "server", setup=made.setup) as server:
        url = f"zookeeper://{server.servers[0].secure_host}/a"

        async def main() -> None:
            async with opened(url, trusting) as client:
                await client.multi([CreateNode("/a", bytes(100_000))])
                found = await asyncio.gather(*(client.get("/a") for _ in range(200)))
                assert {node and len(node.data) for node in found} == {100_000}
            with pytest.raises(Unavailable, match="certificate verify failed"):
                async with opened(url, MetadataOptions(tls=True, connect_timeout_ms=2_000)):
                    pass

        asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("zookeeper:///a", "names no ZooKeeper servers"),
        ("zookeeper://one:port/a", "invalid host or port"),
        ("zookeeper://one,/a", "invalid host or port"),
        ("zookeeper://one/a//b", "cannot be a chroot"),
        ("zookeeper://one/a/../b", "cannot be a chroot"),
        ("zookeeper://one/zookeeper/a", "reserved by ZooKeeper"),
        ("zookeeper://one/a?session_ttl_ms=1", "after the chroot"),
        ("zookeeper://one/a#b", "after the chroot"),
        (f"zookeeper://:{SECRET}@one/a", "no user"),
        (f"zookeeper://alice:{SECRET}/@one:x/a", "zookeeper://"),
    ],
)
def test_a_url_that_names_nothing_is_refused_in_a_sentence(url: str, reason: str) -> None:
    """The error says what is wrong and what to write, and never the password."""
    with pytest.raises(ConfigurationError, match=reason) as refused:
        locate(url, {})
    assert SECRET not in str(refused.value)


def test_a_url_says_where_and_who() -> None:
    """The port may be omitted; the password may be in the environment."""
    found = locate("zookeeper://al%69ce@one,[::1]:2,three:3/a/b/", {PASSWORD_VARIABLE: SECRET})
    assert (found.hosts, found.root, found.user) == ("one:2181,[::1]:2,three:3", "/a/b", "alice")
    assert found.password == SECRET
    assert SECRET not in repr(found)
    assert locate("zookeeper://one", {PASSWORD_VARIABLE: SECRET}).root == ""
    assert locate("zookeeper://one", {PASSWORD_VARIABLE: SECRET}).password == ""


@pytest.mark.parametrize(
    ("url", "options", "where"),
    [
        ("zookeeper://alice@one", MetadataOptions(), PASSWORD_VARIABLE),
        ("zookeeper://one", MetadataOptions(login="sasl-digest-md5"), "no user"),
        ("zookeeper://one", MetadataOptions(tls=True, tls_verify=False), "tls_check_host"),
        ("zookeeper://one", MetadataOptions(tls=True, tls_certificate=__file__), "tls_key"),
        ("zookeeper://one", MetadataOptions(tls_ca=__file__), "set tls to true"),
        ("zookeeper://one", MetadataOptions(tls=True, tls_ca="/nowhere.pem"), "file not found: /nowhere.pem"),
        ("zookeeper://localhost,one", MetadataOptions(require_tls=True), "require_tls is set; set tls to true"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_a_sentence(url: str, options: MetadataOptions, where: str) -> None:
    """Options are checked before connecting."""
    with pytest.raises(ConfigurationError, match=where):
        check(locate(url, {}), options)


@pytest.mark.parametrize(
    ("url", "options", "is_told"),
    [
        (f"zookeeper://alice:{SECRET}@one,localhost", MetadataOptions(), True),
        (f"zookeeper://alice:{SECRET}@one", MetadataOptions(login="sasl-digest-md5"), True),
        (f"zookeeper://alice:{SECRET}@one", MetadataOptions(tls=True, require_tls=True), False),
        (f"zookeeper://alice:{SECRET}@localhost,127.0.0.9:1,[::1]:2181", MetadataOptions(require_tls=True), False),
        ("zookeeper://one", MetadataOptions(), False),
    ],
)
def test_a_password_in_clear_is_warned_of(
    url: str, options: MetadataOptions, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each opening warns once if the password crosses a network unencrypted; the warning does not contain it."""
    check(locate(url, {}), options)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * is_told
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        ("127.0.0.1:1", "refused"),
        ("a.invalid:2181,b.invalid:2181", "no address is known of any of these hosts"),
    ],
)
def test_nobody_at_the_address_is_said_in_a_sentence(hosts: str, reason: str) -> None:
    """The error has the reason and the remedy, after the timeout."""
    # Time for one attempt, however much else the machine has to do.
    assert_unavailable(f"zookeeper://{hosts}/a", reason, 1_500)


def test_an_address_of_something_else_is_said_in_a_sentence() -> None:
    """The other service accepts connections, and does not answer like a ZooKeeper."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert_unavailable(f"zookeeper://127.0.0.1:{silent.getsockname()[1]}/a", "no server accepted a session", 300)


def test_a_program_without_logging_prints_nothing_of_its_own_accord() -> None:
    """Failed attempts to connect are not printed, because the final error reports them once."""
    program = (
        "import asyncio\n"
        "from txnframework.errors import Unavailable\n"
        "from txnframework_zookeeper._options import MetadataOptions\n"
        "from txnframework_zookeeper.testing._clients import opened\n"
        "options = MetadataOptions(connect_timeout_ms=300)\n"
        "async def main():\n"
        "    async with opened('zookeeper://127.0.0.1:1/a', options):\n"
        "        pass\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except Unavailable:\n"
        "    print('unavailable')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("unavailable\n", "")


def assert_unavailable(url: str, reason: str, connect_timeout_ms: int) -> None:
    """Opening ends with the reason, and with what to do."""

    async def main() -> None:
        async with opened(url, MetadataOptions(connect_timeout_ms=connect_timeout_ms)):
            pass

    with pytest.raises(Unavailable, match=f"no connection to {re.escape(url)}: .*{reason}.*; start a majority"):
        asyncio.run(main())
