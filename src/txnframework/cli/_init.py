"""``txnframework init``: a configuration file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from txnframework.cli._config_option import CONFIG_FILE
from txnframework.cli._loaded import Loaded
from txnframework.config import render_config
from txnframework.errors import ConfigurationError
from txnframework.plugin import PluginRegistry, Provider, Role

CHOICES = {
    "metadata.url": Role.METADATA_STORE,
    "ledger.url": Role.LEDGER_STORE,
    "domains.segment.coordinator": Role.COORDINATOR,
    "domains.segment.buffer": Role.BUFFER,
    "domains.segment.pending_ack": Role.PENDING_ACK_STORE,
    "domains.persistent.coordinator": Role.COORDINATOR,
    "domains.persistent.buffer": Role.BUFFER,
    "domains.persistent.pending_ack": Role.PENDING_ACK_STORE,
}
"""Where a plugin is chosen by its name."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=CONFIG_FILE)
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there.")
@click.pass_obj
def init(loaded: Loaded, file: Path, force: bool) -> None:
    """
    Write a commented configuration file.

    Writes FILE (default: txnframework.toml) with every setting, also of the plugins that are installed, its meaning and
    its default. As written, it changes nothing: take the '#' from what you want to change.
    """
    registry = loaded.registry
    text = render_config({place: registry.names(role) for place, role in CHOICES.items()}, _options(registry))
    try:
        with file.open("w" if force else "x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError as exc:
        raise ConfigurationError("", "is there already; --force overwrites it", str(file)) from exc
    except OSError as exc:
        raise ConfigurationError("", f"cannot be written: {exc.strerror or exc}", str(file)) from exc
    click.echo(f"Wrote {file}. 'txnframework check {file}' says whether it is right after your changes.")


def _options(registry: PluginRegistry) -> dict[str, dict[str, type[msgspec.Struct]]]:
    """Return what the installed plugins can be told, by the table where it is written."""
    tables: tuple[tuple[str, Role, Any], ...] = (
        ("metadata.options", Role.METADATA_STORE, registry.metadata_store),
        ("ledger.options", Role.LEDGER_STORE, registry.ledger_store),
        ("coordinators", Role.COORDINATOR, registry.coordinator),
        ("buffers", Role.BUFFER, registry.buffer),
        ("pending_acks", Role.PENDING_ACK_STORE, registry.pending_ack_store),
        ("dispatchers", Role.DISPATCHER, registry.dispatcher),
    )
    found: dict[str, dict[str, type[msgspec.Struct]]] = {}
    for place, role, find in tables:
        for name in registry.names(role):
            provider: Provider[Any, Any] = find(name)
            if provider.options is not None:
                found.setdefault(place, {})[name] = provider.options
    return found
