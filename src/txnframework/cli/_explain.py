"""``txnframework explain``: what the code of an error means, what is known after the error, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec

import click

from txnframework.cli.output import output_option, print_facts, print_json
from txnframework.errors import InvalidInput, TxnFrameworkError
from txnframework.plugin import GROUP

FIELDS = ("known", "retry", "advice")
"""The fields of an error's docstring, in order."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is said about a code; the texts are those of the class's docstring."""

    code: str
    error: str
    meaning: str
    known: str
    retry: str
    advice: str


def entry_of(error: type[TxnFrameworkError]) -> Entry:
    """Return the entry of an error's class, from its docstring."""
    text = inspect.cleandoc(error.__doc__ or "").replace("``", "")
    meaning, *fields = (part.strip() for part in _split_at_fields(text))
    found = {name: " ".join(value.split()) for name, _, value in (one.partition(": ") for one in fields)}
    return Entry(
        error.code,
        f"{error.__module__}.{error.__qualname__}",
        " ".join(meaning.split()),
        *(found.get(f":{name}", "") for name in FIELDS),
    )


def _split_at_fields(text: str) -> Iterator[str]:
    part: list[str] = []
    for line in text.splitlines():
        if line.startswith(tuple(f":{name}: " for name in FIELDS)):
            yield "\n".join(part)
            part = []
        part.append(line)
    yield "\n".join(part)


def known_errors() -> dict[str, type[TxnFrameworkError]]:
    """Return the classes of the core and of the installed plugins, by code; a plugin's are in its module ``errors``."""
    for package in sorted({one.module.partition(".")[0] for one in entry_points(group=GROUP)}):
        if find_spec(package) and find_spec(f"{package}.errors"):
            import_module(f"{package}.errors")
    return {one.code: one for one in _with_codes(TxnFrameworkError)}


def _with_codes(error: type[TxnFrameworkError]) -> Iterator[type[TxnFrameworkError]]:
    if "code" in vars(error):
        yield error
    for one in error.__subclasses__():
        yield from _with_codes(one)


@click.command()
@click.argument("code")
@output_option
def explain(code: str, output: str) -> None:
    """
    Explain an error by its code or class.

    CODE is a code such as TXN-302, or the name of a class as a traceback shows it.

    Prints what the error means, what is known after it, at which level to retry, and what to do.
    """
    errors = known_errors()
    classes = {one.__name__.lower(): one for one in errors.values()}
    error = errors.get(code.upper()) or classes.get(code.rpartition(".")[2].lower())
    if error is None:
        raise InvalidInput(f"no error is named {code!r}; write a code such as TXN-302, or install the plugin it is of")
    entry = entry_of(error)
    if output == "json":
        print_json(asdict(entry))
        return
    click.echo(f"{entry.code} {entry.error}\n")
    facts = {"meaning": entry.meaning, "known": entry.known, "retry": entry.retry, "to do": entry.advice}
    indent = " " * (max(map(len, facts)) + 2)
    print_facts({name: click.wrap_text(text, 100, "", indent) for name, text in facts.items()})
