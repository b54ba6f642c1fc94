"""The gateway as a process: the page about it, tokens, encryption, and what happens when it is killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pulsar
import pytest
import trustme

from txnframework.cli import main
from txnframework.testing.servers.processes import free_ports

PATIENCE_S = 120
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "pulsar-clients.md"
TOKEN = "a token of this test"
TOPIC = "persistent://public/default/orders"


@contextmanager
def gateway(folder: Path, *options: str, listen: str = "127.0.0.1:0") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a gateway, with its data in a folder; yields its URL."""
    command = [sys.executable, "-m", "txnframework", "serve", "pulsar", "--listen", listen, *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"pulsar(\+ssl)?://\S+", process.stdout.readline())
            assert found is not None
            yield found[0], process
        finally:
            process.kill()


def client_of(url: str, **options: object) -> pulsar.Client:
    return pulsar.Client(url, operation_timeout_seconds=PATIENCE_S, **options)


def test_the_program_on_the_page(tmp_path: Path) -> None:
    """Then it ends at SIGTERM, and the framework's command reads what was sent."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    with gateway(tmp_path) as (url, process):
        program = textwrap.dedent(program).replace("pulsar://127.0.0.1:6650", url)
        subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    read = [sys.executable, "-m", "txnframework", "topic", "consume", "topic://public/default/orders"]
    done = subprocess.run(read, cwd=tmp_path, check=True, timeout=PATIENCE_S, capture_output=True, text=True)
    assert "order 1" in done.stdout


def test_admin_api_ends_with_the_gateway(tmp_path: Path) -> None:
    with gateway(tmp_path, "--admin", "127.0.0.1:0") as (_, process):
        assert process.stdout is not None
        (url,) = re.findall(r"http://\S+", process.stdout.readline())
        assert httpx.get(f"{url}/admin/v2/brokers/health", timeout=PATIENCE_S).text == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    """The client goes on at the next gateway, and every message is there once."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"  # which no outgoing connection takes while nothing listens there
    with gateway(tmp_path, listen=listen) as (url, process):
        client = client_of(url)
        producer = client.create_producer(TOPIC)
        for number in range(20):
            producer.send(b"%d" % number)
        process.kill()
        process.wait(PATIENCE_S)
    with gateway(tmp_path, listen=listen) as (url, _):
        for number in range(20, 40):
            producer.send(b"%d" % number)
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        assert [reader.read_next(PATIENCE_S * 1_000).data() for _ in range(40)] == [b"%d" % one for one in range(40)]
        assert not reader.has_message_available()
        client.close()


def test_a_token_and_encryption(tmp_path: Path) -> None:
    """A client without the token, or with another one, is refused."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    chain, key, trusted, tokens = (tmp_path / name for name in ("chain.pem", "key.pem", "ca.pem", "tokens.txt"))
    certificate.private_key_pem.write_to_path(key)
    for at, pem in enumerate(certificate.cert_chain_pems):
        pem.write_to_path(chain, append=at > 0)
    authority.cert_pem.write_to_path(trusted)
    tokens.write_text(f"{TOKEN}\n")
    files = ["--tokens", str(tokens), "--tls-certificate", str(chain), "--tls-key", str(key)]
    with gateway(tmp_path, *files) as (url, _):
        assert url.startswith("pulsar+ssl://")
        options = {"tls_trust_certs_file_path": str(trusted)}
        client = client_of(url, authentication=pulsar.AuthenticationToken(TOKEN), **options)
        client.create_producer(TOPIC).send(b"a")
        client.close()
        for wrong in (None, pulsar.AuthenticationToken("another token of it")):
            # A client that is refused connects again until its time is over.
            stranger = pulsar.Client(url, operation_timeout_seconds=5, authentication=wrong, **options)
            with pytest.raises(pulsar.PulsarException):
                stranger.create_producer(TOPIC)
            stranger.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--listen", "6650"], "write HOST:PORT"),
        (["--advertise", "a"], "write HOST:PORT"),
        (["--tls-key", "pyproject.toml"], "--tls-key needs --tls-certificate"),
        (["--tls-certificate", "pyproject.toml"], "--tls-certificate pyproject.toml"),
        (["--tokens", "short.txt"], "at least 16 characters"),
    ],
)
def test_options_that_are_refused(
    options: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "short.txt").write_text("short\n")
    assert main(["serve", "pulsar", *options]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


COMMENT = "# tokens of the payment team"
ELSEWHERE = "192.0.2.1:6650"
"""An address that no machine has, so that a command ends when it has said what it has to say."""


def test_comments_are_no_tokens(tmp_path: Path) -> None:
    """Lines that begin with # are left out, however long they are."""
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(f"{COMMENT}\n\n  {TOKEN}  \n")
    tokens.chmod(0o600)
    with gateway(tmp_path, "--tokens", str(tokens), "--admin", "127.0.0.1:0") as (_, process):
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        statuses = [
            httpx.get(f"{url}/admin/v2/clusters", headers={"Authorization": f"Bearer {one}"}).status_code
            for one in (TOKEN, COMMENT)
        ]
        assert statuses == [200, 401]


@pytest.mark.parametrize(
    ("options", "mode", "noted"),
    [
        ([], 0o600, ["everyone who can reach this address can read and change everything"]),
        (["--tokens", "tokens.txt"], 0o600, ["tokens and messages are not encrypted"]),
        (["--tokens", "tokens.txt"], 0o640, ["can be read by other users", "tokens and messages are not encrypted"]),
        (["--tokens", "tokens.txt", "--tls-certificate", "chain.pem"], 0o600, []),
    ],
)
def test_what_is_noted_at_the_start(
    options: list[str],
    mode: int,
    noted: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What others can read, in one sentence each, and nothing of the tokens themselves."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens.txt").write_text(f"{TOKEN}\n")
    (tmp_path / "tokens.txt").chmod(mode)
    certificate = trustme.CA().issue_cert("gateway.example")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "chain.pem")
    assert main(["serve", "pulsar", "--listen", ELSEWHERE, *options]) == 2
    said = capsys.readouterr().err
    notes = " ".join(said.split()).split("Note: ")[1:]
    assert len(notes) == len(noted)
    assert all(one in note for one, note in zip(noted, notes, strict=True))
    assert TOKEN not in said
