"""The command ``txnframework serve pulsar``."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import stat
from pathlib import Path

import click

from txnframework.cli.addresses import is_local, parse_address
from txnframework.cli.stores import LoadedPlugins, config_option, with_client
from txnframework.client import Client
from txnframework.errors import InvalidInput
from txnframework.model.names import TOPIC, TOPIC_DOMAINS
from txnframework_pulsar.server import ServerOptions, serving

TOKEN_CHARACTERS_MIN = 16
COMMENT = "#"
"""A line of the file of tokens that begins with it is no token."""
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:6650",
    show_default=True,
    help="Address to serve at. Port 0 chooses a free port.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    default="",
    help="Address by which clients reach the gateway. Default: the address of --listen.",
)
@click.option("--admin", metavar="HOST:PORT", help="Serve the admin REST API too, at this address.")
@click.option(
    "--domain",
    type=click.Choice(TOPIC_DOMAINS),
    default=TOPIC,
    show_default=True,
    help="Topics that clients name persistent://...: scalable topics, or persistent ones.",
)
@click.option("--create/--no-create", "creates", default=True, help="Create topics that clients name.")
@click.option("--tokens", type=EXISTING_FILE, help="File with a token in each line; clients must show one of them.")
@click.option("--tls-certificate", type=EXISTING_FILE, help="Certificate chain in PEM form, for pulsar+ssl://.")
@click.option("--tls-key", type=EXISTING_FILE, help="Private key of the certificate in PEM form.")
@config_option
@click.pass_obj
def pulsar(
    loaded: LoadedPlugins,
    listen: str,
    advertise: str,
    admin: str | None,
    domain: str,
    creates: bool,
    tokens: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    config: Path | None,
) -> None:
    """
    Serve topics to clients of Apache Pulsar.

    Clients in any language connect to pulsar://HOST:PORT, and use the topics of the configured stores. They name
    a topic persistent://tenant/namespace/name; with --domain topic this is topic://tenant/namespace/name. Transactions
    of clients are those of the domain. Runs until Ctrl-C or SIGTERM.
    """
    host, port = _address(listen, "--listen")
    if advertise:
        _address(advertise, "--advertise")
    options = ServerOptions(
        host,
        port,
        advertise,
        domain,
        creates,
        _tokens(tokens),
        _tls(tls_certificate, tls_key),
        None if admin is None else _address(admin, "--admin"),
    )
    if not all(map(is_local, {host} if options.admin is None else {host, options.admin[0]})):
        if not options.tokens:
            note = "everyone who can reach this address can read and change everything. Add --tokens."
            click.echo(f"Note: {note}", err=True)
        elif options.tls is None:
            note = "tokens and messages are not encrypted on their way to this address. Add --tls-certificate."
            click.echo(f"Note: {note}", err=True)
    with_client(loaded, config, lambda client: _serve(client, options), stays=True)


async def _serve(client: Client, options: ServerOptions) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serving(client, options) as urls:
        click.echo(f"Pulsar clients connect to {urls.broker} (stop with Ctrl-C)")
        if urls.admin is not None:
            click.echo(f"The admin REST API is at {urls.admin}")
        await ended.wait()


def _address(text: str, option: str) -> tuple[str, int]:
    return parse_address(text, option, "127.0.0.1:6650")


def _tokens(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    if os.name == "posix" and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        click.echo(f"Note: {file} can be read by other users of this machine; run 'chmod 600' on it.", err=True)
    lines = map(str.strip, file.read_text(encoding="utf-8").splitlines())
    found = tuple(line for line in lines if line and not line.startswith(COMMENT))
    if not found or min(map(len, found)) < TOKEN_CHARACTERS_MIN:
        raise InvalidInput(f"--tokens {file}: write one token per line, of at least {TOKEN_CHARACTERS_MIN} characters")
    return found


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None:
            raise InvalidInput("--tls-key needs --tls-certificate")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise InvalidInput(f"--tls-certificate {certificate}: {error}") from error
    return context
