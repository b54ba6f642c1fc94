"""``txnframework torture``: disrupts real processes over real stores, and checks what their clients saw."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txnframework.cli import terminal
from txnframework.cli.stores import LoadedPlugins
from txnframework.config import redact_url, store_name
from txnframework.errors import InvalidInput
from txnframework.interfaces import ISharedStore
from txnframework.plugin import PluginRegistry, Role

if TYPE_CHECKING:
    from txnframework_simulation.torture.member import Urls

EPILOG = "Exit status: 0 no defect was found; 1 a rule was violated or a process failed; 2 invalid usage."


@click.command(epilog=EPILOG)
@click.option(
    "--metadata",
    metavar="URL",
    help="Store for transactions, layouts and cursors; embedded-postgresql, for example, starts a server for the run,"
    " and embedded-nats-cluster three.  [default: a SQLite file in the directory]",
)
@click.option(
    "--ledger", metavar="URL", help="Store for messages.  [default: the same as --metadata, if it stores messages]"
)
@click.option("--seconds", type=click.FloatRange(min=1), default=60, show_default=True, help="Duration of the run.")
@click.option(
    "--processes", type=click.IntRange(min=1), default=3, show_default=True, help="Number of processes at a time."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the disruptions.  [default: a random one]")
@click.option(
    "--spare-servers",
    is_flag=True,
    help="Do not disrupt the servers that were started for the run.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory for the history, the logs and the SQLite file; must be empty, and is kept."
    "  [default: a temporary directory, kept only if a defect was found]",
)
@click.option(
    "--check",
    "again",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Only check the history of an earlier run in this directory.",
)
@click.pass_obj
@click.pass_context
def torture(
    ctx: click.Context,
    loaded: LoadedPlugins,
    metadata: str | None,
    ledger: str | None,
    seconds: float,
    processes: int,
    seed: int | None,
    spare_servers: bool,
    directory: Path | None,
    again: Path | None,
) -> None:
    """
    Kill, pause and disconnect real processes, and check what their clients saw.

    Starts several processes over shared stores. Each runs several clients that send, consume, acknowledge, seek, commit
    and abort, over topics of the metadata-driven and the log-driven family, while segments are split, merged and
    trimmed. In SQLite and PostgreSQL, another client commits rows of a table together with messages and
    acknowledgments, and kills its process at the steps of a transaction. Meanwhile, processes are killed and restarted,
    or paused for seconds. If the store has a server, their connections are cut, stalled, delayed and half closed. A
    server that was started for the run is killed and restarted; the servers of a cluster are also paused, and cut off
    from each other. Each request of a client and its reply is recorded. In the end, all topics and subscriptions are
    drained. The history is then checked: no loss, no duplicates, no partial transactions, and so on.
    """
    # Imported here because other commands do not need it.
    from txnframework.testing.servers.embedded import started_servers
    from txnframework_simulation.torture.run import HISTORY, Settings, judge, run

    console = terminal.console(stderr=True)
    if again is not None:
        if not (again / HISTORY).exists():
            raise InvalidInput(f"{again} has no {HISTORY}: name the directory of a completed run")
        result = judge(again)
        result.print_to(terminal.console())
        ctx.exit(0 if result.ok else 1)
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    with (
        _working_directory(directory) as (place, keep),
        started_servers(loaded.registry, metadata, ledger) as ((metadata_url, ledger_url), servers),
    ):
        urls = _urls(loaded.registry, metadata_url, ledger_url, place)
        goes = "" if directory is not None else ", removed at the end unless a defect is found"
        console.print(f"seed {chosen}, files in {place}{goes}", highlight=False)
        spared = {} if spare_servers else servers
        result = run(Settings(urls, place, seconds, processes, chosen, spared), console)
        if not result.ok:
            keep.append(place)
        result.print_to(terminal.console())
    ctx.exit(0 if result.ok else 1)


def _urls(registry: PluginRegistry, metadata: str | None, ledger: str | None, directory: Path) -> Urls:
    """Return the URLs; the default for the ledger is the metadata store, if it stores messages."""
    from txnframework_simulation.torture.member import Urls

    own = f"sqlite:///{directory / 'txn.db'}"
    chosen = metadata or own
    for option, url in (("--metadata", chosen), ("--ledger", ledger)):
        if url is not None and not _shared(registry, url):
            raise InvalidInput(
                f"{option} {redact_url(url)}: torture runs several processes, and they cannot share this store;"
                " use a shared one, such as sqlite:///txn.db"
            )
    return Urls(chosen, ledger or (own if _keeps_no_messages(registry, chosen) else chosen))


def _keeps_no_messages(registry: PluginRegistry, url: str) -> bool:
    scheme = store_name(url)
    return scheme in registry.names(Role.METADATA_STORE) and scheme not in registry.names(Role.LEDGER_STORE)


def _shared(registry: PluginRegistry, url: str) -> bool:
    """Return whether processes can share the store; a ledger store has the same answer as its metadata store."""
    scheme = store_name(url)
    if scheme not in registry.names(Role.METADATA_STORE):
        return True  # if it is not installed, opening it fails
    return bool(ISharedStore.implementedBy(registry.metadata_store(scheme).implementation))


@contextmanager
def _working_directory(chosen: Path | None) -> Iterator[tuple[Path, list[Path]]]:
    """Yield an empty directory; a temporary one is removed afterwards unless it is added to the yielded list."""
    keep: list[Path] = []
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        if any(chosen.iterdir()):
            raise InvalidInput(f"{chosen} is not empty: name another directory, or empty it")
        yield chosen.resolve(), keep
        return
    place = Path(tempfile.mkdtemp(prefix="txnframework-torture-")).resolve()
    try:
        yield place, keep
    except InvalidInput:
        raise
    except Exception:
        keep.append(place)
        raise
    finally:
        if keep:
            click.echo(f"The files are kept in {place}", err=True)
        else:
            shutil.rmtree(place, ignore_errors=True)
