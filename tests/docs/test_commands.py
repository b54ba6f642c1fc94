"""Every command that the documentation, a message or a docstring names exists, with the options that it is given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import pytest

from txnframework.cli._app import make_group
from txnframework.cli._groups import DISTRIBUTIONS, LoadedPlugins

ROOT = Path(__file__).parents[2]
SKIPPED = {".tox", ".git", "tests", "build", "dist", "node_modules"}
SUFFIXES = {".md", ".py", ".toml", ".rst", ".ini"}

# As a user would type it: behind a prompt, in the quotes of a message, in Markdown's or reStructuredText's code.
_NAMED = re.compile(
    r"(?:^\s*(?:\$ |- run: |ExecStart=\S*/)|``|(?<!`)`|')txnframework(?P<rest>(?: +[^\s`'|;&<>]+)+)", re.MULTILINE
)
_PLACEHOLDER = re.compile(r"[A-Z]+|\.\.\.|\[.*|\{.*|.*\.\.\.")


@dataclass(frozen=True)
class Named:
    """A command as a file names it."""

    place: str
    arguments: tuple[str, ...]


def named_in(path: Path) -> Iterator[Named]:
    """Yield the commands that a file names."""
    text = path.read_text(encoding="utf-8")
    # A line that goes on, in Markdown and in Python's adjacent strings.
    text = re.sub(r"\\\n\s*", " ", text)
    text = re.sub(r"\"\n\s*f?\"", "", text)
    for found in _NAMED.finditer(text):
        rest = found["rest"].rstrip('.,:)"\\')
        try:
            arguments = tuple(shlex.split(rest, comments=True))
        except ValueError:
            arguments = tuple(rest.split())
        line = text.count("\n", 0, found.start()) + 1
        if arguments:
            yield Named(f"{path.relative_to(ROOT)}:{line}", arguments)


def files() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in SUFFIXES and SKIPPED.isdisjoint(path.relative_to(ROOT).parts[:-1]):
            yield path


@pytest.fixture(scope="module")
def loaded() -> LoadedPlugins:
    return LoadedPlugins((), lambda brought: iter(()))


def wrong_with(named: Named, loaded: LoadedPlugins) -> str | None:
    """Return what of a command does not exist; None: all of it does."""
    command: click.Command = make_group()
    context = click.Context(command, info_name="txnframework", obj=loaded)
    left = list(named.arguments)
    while left:
        token = left.pop(0)
        if token.startswith("-") and len(token) > 1:
            name, equals, _ = token.partition("=")
            option = next((one for one in command.get_params(context) if name in one.opts + one.secondary_opts), None)
            if option is None:
                return f"{context.command_path} has no option {name}"
            if isinstance(option, click.Option) and not option.is_flag and not option.count and not equals and left:
                left.pop(0)
        elif isinstance(command, click.Group):
            if _PLACEHOLDER.fullmatch(token):
                return None
            found = command.get_command(context, token)
            if found is None:
                whole = f"{context.command_path} {token}".removeprefix("txnframework ")
                if whole in DISTRIBUTIONS and not is_installed(DISTRIBUTIONS[whole]):
                    return None  # where all plugins are installed, it is looked at
                return f"there is no command {context.command_path} {token}"
            command, context = found, click.Context(found, info_name=token, parent=context, obj=loaded)
    return None


def is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def test_named_commands_exist(loaded: LoadedPlugins) -> None:
    """In every page, README, message and docstring; those of plugins too."""
    assert not loaded.errors, "a plugin whose commands cannot be loaded would make every one of them unknown"
    found = [one for path in files() for one in named_in(path)]
    assert len(found) > 100
    assert {one.place.partition("/")[0] for one in found} >= {"docs", "plugins", "src"}
    wrong = [f"{one.place}: {told}" for one in found if (told := wrong_with(one, loaded)) is not None]
    assert wrong == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topic", "show", "orders"), "there is no command txnframework topic show"),
        (("nosuch",), "there is no command txnframework nosuch"),
        (("topic", "list", "--nosuch"), "txnframework topic list has no option --nosuch"),
        (("--config", "f.toml", "topic", "list"), None),
        (("topic", "create", "orders", "--segments=4"), None),
        (("topic", "..."), None),
    ],
)
def test_what_does_not_exist_is_found(loaded: LoadedPlugins, arguments: tuple[str, ...], said: str | None) -> None:
    """Or the test above would hold of anything."""
    assert wrong_with(Named("here", arguments), loaded) == said


SERVING = {"console", "metrics", "pipeline run", "serve pulsar", "server", "simulate", "torture"}
"""What runs until it is stopped, or prints as it goes."""


def leaves(command: click.Command, context: click.Context, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is no group, with its words."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        inner = click.Context(below, parent=context, info_name=name, obj=context.obj)
        yield from leaves(below, inner, f"{path} {name}".strip())


def test_every_change_is_printed_as_json(loaded: LoadedPlugins) -> None:
    """Every installed command takes ``--output json``, but for those that serve."""
    top = make_group()
    found = dict(leaves(top, click.Context(top, info_name="txnframework", obj=loaded)))
    without = {
        path
        for path, command in found.items()
        if not any("--output" in one.opts and one.default == "table" for one in command.params)
    }
    assert without == SERVING & found.keys()
    assert len(found) > 30
