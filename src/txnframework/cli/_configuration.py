"""``txnframework init``, ``check`` and ``plugins``: the configuration, and the available plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec

from txnframework.broker import NoPlugins, StoreProbe, plugins_of, probe_stores
from txnframework.cli._error_report import report
from txnframework.cli._groups import LoadedPlugins
from txnframework.cli._options import CONFIG_FILE, CONFIG_VARIABLE, ConfigPath
from txnframework.cli._statuses import STATUS_FAILED
from txnframework.cli.output import duration_of, output_option, print_change, print_json, print_records
from txnframework.cli.stores import connection_notice, note_left_out, notice_if_slow
from txnframework.config import (
    BacklogQuotaSection,
    Config,
    DomainSection,
    RetentionSection,
    check_config,
    load_config,
    redact_url,
    render_config,
)
from txnframework.environment import SystemEnvironment
from txnframework.errors import ConfigurationError
from txnframework.plugin import PluginDescription, PluginRegistry, Provider, Role

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
"""The settings that name a plugin."""


@click.command()
@click.argument("file", type=ConfigPath(), default=CONFIG_FILE)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@output_option
@click.pass_obj
def init(loaded: LoadedPlugins, file: Path, force: bool, output: str) -> None:
    """
    Write a commented configuration file.

    FILE (default: txnframework.toml) lists every setting, also those of the installed plugins, with its meaning and
    its default. The file as written changes nothing: remove the '#' in front of the settings that you change.
    """
    registry = loaded.registry
    text = render_config({path: registry.names(role) for path, role in CHOICES.items()}, _options(registry))
    try:
        with file.open("w" if force else "x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError as exc:
        raise ConfigurationError("", "file already exists; --force overwrites it", str(file)) from exc
    except OSError as exc:
        raise ConfigurationError("", f"cannot write the file: {exc.strerror or exc}", str(file)) from exc
    print_change(output, f"Wrote {file}. After changes, 'txnframework check {file}' validates it.", {"file": str(file)})


def _options(registry: PluginRegistry) -> dict[str, dict[str, type[msgspec.Struct]]]:
    """Return the option types of the installed plugins, by the table that holds them and the plugin's name."""
    tables: tuple[tuple[str, Role, Any], ...] = (
        ("metadata.options", Role.METADATA_STORE, registry.metadata_store),
        ("ledger.options", Role.LEDGER_STORE, registry.ledger_store),
        ("coordinators", Role.COORDINATOR, registry.coordinator),
        ("buffers", Role.BUFFER, registry.buffer),
        ("pending_acks", Role.PENDING_ACK_STORE, registry.pending_ack_store),
        ("dispatchers", Role.DISPATCHER, registry.dispatcher),
        ("observers", Role.OBSERVER, registry.observer),
    )
    found: dict[str, dict[str, type[msgspec.Struct]]] = {}
    for table, role, find in tables:
        for name in registry.names(role):
            provider: Provider[Any, Any] = find(name)
            if provider.options is not None:
                found.setdefault(table, {})[name] = provider.options
    return found


@click.command()
@click.argument("file", type=ConfigPath(), default=CONFIG_FILE, envvar=CONFIG_VARIABLE)
@click.option("--connect", is_flag=True, help="Then open each store, and check that they belong together.")
@output_option
@click.pass_obj
@click.pass_context
def check(ctx: click.Context, loaded: LoadedPlugins, file: Path, connect: bool, output: str) -> None:
    """
    Validate a configuration file.

    Reads FILE (default: the file that TXNFRAMEWORK_CONFIG names, or txnframework.toml) and compares it with the
    installed plugins. Prints the stores and plugins that it names, and what [retention] deletes. Exit status 2 if the
    file is invalid; standard error says what is wrong, where, and what is allowed.

    Opens no store without --connect. With it, an empty store is created, as any first use does. Exit status 1 if a
    store cannot be used; standard error has one sentence for each.
    """
    config = load_config(file)
    check_config(config, loaded.registry, str(file))
    note_left_out(loaded)
    facts = _facts(config, loaded.registry)
    if output == "table":
        click.echo(f"{file} is valid.")
        for name, found in facts.items():
            for line in [found] if isinstance(found, str) else found:
                click.echo(f"  {name:<11} {line}")
    probes = _probed(config, loaded.registry) if connect else ()
    if output == "json":
        print_json({"file": str(file), **facts, "probes": [_probe_facts(one) for one in probes]})
    else:
        for one in probes:
            _print_probe(one)
    if any(one.took_ms is None for one in probes):
        ctx.exit(STATUS_FAILED)


def _facts(config: Config, registry: PluginRegistry) -> dict[str, str | list[str]]:
    """Return what a configuration names: the stores, what serves each domain, and the rules that delete or refuse."""
    facts: dict[str, str | list[str]] = {
        "metadata": redact_url(config.metadata.url),
        "ledger": redact_url(config.ledger.url),
    }
    for domain in ("segment", "persistent"):
        usual = config.domain("", domain)
        facts[domain] = [domain_summary(usual, registry)] + [
            f"in {namespace}: {domain_summary(chosen, registry)}"
            for namespace in config.namespaces
            if (chosen := config.domain(namespace, domain)) != usual
        ]
    return facts | {"retention": [*retention_summary(config)], "backlogs": [*quota_summary(config)]}


def _probed(config: Config, registry: PluginRegistry) -> tuple[StoreProbe, ...]:
    """Return for each store whether it answers, and whether they belong together."""

    async def work() -> tuple[StoreProbe, ...]:
        environment = SystemEnvironment()
        async with notice_if_slow(connection_notice(config, registry), environment):
            return await probe_stores(config, registry, environment)

    return asyncio.run(work())


def _print_probe(one: StoreProbe) -> None:
    if one.error is not None:
        report(one.error)
    elif one.took_ms is None:
        what = "Whether the stores belong together" if one.store == "pair" else f"The {one.store}"
        click.echo(f"{what} was not checked.", err=True)
    else:
        click.echo("The stores belong together." if one.store == "pair" else f"The {one.store} answers.")


def _probe_facts(one: StoreProbe) -> dict[str, object]:
    error = None if one.error is None else " ".join(str(one.error).split())
    return {"store": one.store, "took_ms": one.took_ms, "error": error}


def domain_summary(section: DomainSection, registry: PluginRegistry) -> str:
    """Return which plugins serve a domain, or why it has no transactions."""
    plugins = plugins_of(section, registry)
    if isinstance(plugins, NoPlugins):
        return f"without transactions: {plugins.reason}"
    return f"coordinator {section.coordinator}, buffer {section.buffer}, pending acks {section.pending_ack}"


def retention_summary(config: Config) -> Iterator[str]:
    """
    Yield a description of the data that is deleted in all topics, and in each namespace with another rule.

    Yield nothing if all data is kept.
    """
    rule = _deletions(config.retention)
    if rule:
        yield rule
    for namespace in sorted(config.namespaces):
        own = _deletions(config.retention_of(namespace))
        if own != rule:
            yield f"in {namespace}: {own or 'nothing is deleted'}"


def quota_summary(config: Config) -> Iterator[str]:
    """Yield a description of the quota of all topics, and of each namespace with another one."""
    quota = _refusals(config.backlog_quota)
    if quota:
        yield quota
    for namespace in sorted(config.namespaces):
        own = _refusals(config.backlog_quota_of(namespace))
        if own != quota:
            yield f"in {namespace}: {own or 'producers are not refused'}"


def _refusals(quota: BacklogQuotaSection) -> str:
    """Return a description of when a quota refuses producers, or an empty text."""
    bounds = [f"{bound} {unit}" for bound, unit in ((quota.messages, "messages"), (quota.bytes, "bytes")) if bound >= 0]
    return f"producers are refused while a subscription is {' or '.join(bounds)} behind" if bounds else ""


def _deletions(rule: RetentionSection) -> str:
    """Return a description of the data that a rule deletes, or an empty text."""
    limits = []
    if rule.time_ms == 0 or rule.bytes == 0:
        limits.append("at once")
    else:
        if rule.time_ms > 0:
            limits.append(f"after {duration_of(rule.time_ms)}")
        if rule.bytes > 0:
            limits.append(f"beyond {rule.bytes} bytes of a segment")
    deleted = [f"acknowledged messages are deleted {' or '.join(limits)}"] if limits else []
    if rule.backlog_time_ms >= 0:
        when = f"after {duration_of(rule.backlog_time_ms)}" if rule.backlog_time_ms else "at once"
        deleted.append(f"messages that a subscription has not acknowledged expire {when}")
    return "; ".join(deleted)


@click.command()
@click.option("--guarantees", is_flag=True, help="List the guarantees of each plugin instead, one in a line.")
@output_option
@click.pass_obj
@click.pass_context
def plugins(ctx: click.Context, loaded: LoadedPlugins, guarantees: bool, output: str) -> None:
    """
    List the installed plugins.

    Shows what each plugin provides and its distribution. With --guarantees, shows the guarantees of each implementation
    beyond those of its role; JSON has both. Exit status 1 if a plugin cannot be used; standard error names it and says
    why.
    """
    described = loaded.registry.describe()
    if output == "json":
        print_json([asdict(one) for one in described])
    elif described:
        rows = [*(_guarantee_rows if guarantees else _plugin_rows)(described)]
        if rows:
            print_records(rows)
        else:
            click.echo("No plugin has a guarantee beyond those of its role.")
    else:
        click.echo("No plugin is installed. To start, run: pip install 'txnframework[sql]'")
    for error in loaded.errors:
        report(error)
    if loaded.errors:
        ctx.exit(STATUS_FAILED)


def _plugin_rows(described: Iterable[PluginDescription]) -> Iterator[dict[str, object]]:
    for one in described:
        yield {
            "role": one.role,
            "name": one.name,
            "distribution": one.distribution or "(passed in)",
            "version": one.version or "",
            "family": ", ".join(one.families),
        }


def _guarantee_rows(described: Iterable[PluginDescription]) -> Iterator[dict[str, object]]:
    """Yield a row for each guarantee, because all of a store's would make a line of 230 characters."""
    for one in described:
        for guarantee in one.capabilities:
            yield {"role": one.role, "name": one.name, "guarantee": guarantee}
