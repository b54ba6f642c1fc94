"""The core's own commands."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from txnframework.cli._boundary import STATUS_FAILED, report
from txnframework.cli._config_option import CONFIG_FILE, CONFIG_VARIABLE, config_option
from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import with_client
from txnframework.cli._served import served
from txnframework.cli._trimming import trimming
from txnframework.cli.output import output_option, print_json, print_table
from txnframework.config import check_config, load_config, redact_url


@click.command()
@output_option
@click.pass_obj
@click.pass_context
def plugins(ctx: click.Context, loaded: Loaded, output: str) -> None:
    """
    List the installed plugins.

    Shows what each provides, which distribution it comes with, and what its implementation promises beyond its
    role. Exit status 1 if a plugin cannot be used; standard error says which and why.
    """
    described = loaded.registry.describe()
    if output == "json":
        print_json([asdict(one) for one in described])
    elif described:
        print_table(
            ("role", "name", "distribution", "version", "family", "promises"),
            (
                (
                    one.role,
                    one.name,
                    one.distribution or "(passed in)",
                    one.version,
                    ", ".join(one.families),
                    ", ".join(one.capabilities),
                )
                for one in described
            ),
        )
    else:
        click.echo("No plugin is installed; 'pip install txnframework[embedded]' brings enough to start with.")
    for error in loaded.errors:
        report(error)
    if loaded.errors:
        ctx.exit(STATUS_FAILED)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=CONFIG_FILE, envvar=CONFIG_VARIABLE)
@click.pass_obj
def check(loaded: Loaded, file: Path) -> None:
    """
    Say whether a configuration file is right.

    Reads FILE (default: the one that TXNFRAMEWORK_CONFIG names, or txnframework.toml) and compares it with the
    installed plugins; opens no store. Says which stores and plugins it names, and what [retention] throws away where
    it is set. Exit status 2 if something is wrong; standard error says what, where and what is allowed.
    """
    config = load_config(file)
    if loaded.errors:
        raise loaded.errors[0]  # a program that opens this configuration would stop at it too
    check_config(config, loaded.registry, str(file))
    click.echo(f"{file} is right.")
    click.echo(f"  metadata    {redact_url(config.metadata.url)}")
    click.echo(f"  ledger      {redact_url(config.ledger.url)}")
    for domain in ("segment", "persistent"):
        click.echo(f"  {domain:<11} {served(config.domain('', domain), loaded.registry)}")
        for namespace in config.namespaces:
            if (chosen := config.domain(namespace, domain)) != config.domain("", domain):
                click.echo(f"{'':13} in {namespace}: {served(chosen, loaded.registry)}")
    for rule in trimming(config):
        click.echo(f"  retention   {rule}")


@click.command()
@config_option
@click.pass_obj
def upkeep(loaded: Loaded, config: Path | None) -> None:
    """
    Do once what clients do in the background.

    Aborts transactions that are overdue or whose process is gone, makes take effect what has ended, trims what no
    subscription needs any more, as far as [retention] says so, collects what is left of trimmed messages, and finishes
    deletions. A bounded number at a time. For systems whose programs live for a moment only.
    """
    with_client(loaded, config, lambda client: client.upkeep())
    click.echo("Done.")
