"""``txnframework new-plugin``: write a distribution that provides a subscription type, with its tests."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import click

from txnframework.cli.output import output_option, print_change
from txnframework.errors import InvalidInput

TEMPLATE = files("txnframework.cli") / "plugin_template"
"""A distribution named ``txnframework-relay``, whose files are all in one folder."""

PLACES = {
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "tox.ini": "tox.ini",
    "plugin.py": "src/{package}/plugin.py",
    "test_relay.py": "tests/test_{name}.py",
}
"""Where each file of the template is written."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@click.command(name="new-plugin")
@click.argument("name")
@output_option
def new_plugin(name: str, output: str) -> None:
    """
    Write a distribution with a plugin, to start from.

    Creates the folder txnframework-NAME in the working directory. It has a working plugin, the subscription type NAME
    (letters, digits, '-' or '_'), and tests that run the conformance suite of its role. Its README.md says how to
    install and test it.
    """
    chosen = name.removeprefix("txnframework-").replace("-", "_")
    if not _NAME.fullmatch(chosen):
        raise InvalidInput(f"invalid name of a plugin: {name!r} (allowed: lower-case letters, digits, '-' and '_')")
    folder = Path(f"txnframework-{chosen.replace('_', '-')}")
    if folder.exists():
        raise InvalidInput(f"{folder} already exists")
    written = distribution_of(chosen)
    for place, text in written.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
    facts = {"plugin": chosen, "folder": str(folder), "files": sorted(written)}
    print_change(output, f"Wrote {len(written)} files in {folder}. Its README.md says how to test it.", facts)


def distribution_of(name: str) -> dict[str, str]:
    """Return the text of each file of a distribution for the subscription type ``name``, by its path."""
    package = f"txnframework_{name}"
    texts = {f"src/{package}/__init__.py": f'"""The subscription type ``{name}``."""\n', f"src/{package}/py.typed": ""}
    for source, place in PLACES.items():
        text = (TEMPLATE / source).read_text(encoding="utf-8")
        texts[place.format(package=package, name=name)] = renamed(text, name)
    return texts


def renamed(text: str, name: str) -> str:
    """Return a text of the template with the words of ``name`` in place of those of ``relay``."""
    text = text.replace("txnframework-relay", f"txnframework-{name.replace('_', '-')}")
    return text.replace("Relay", name.title().replace("_", "")).replace("relay", name)
