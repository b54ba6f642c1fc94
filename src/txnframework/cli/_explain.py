"""``txnframework explain``: what the code of an error means, what is known after the error, and what to do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec

import click

from txnframework.cli._suggestions import near_names, question_of
from txnframework.cli.output import output_option, print_facts, print_json
from txnframework.errors import InvalidInput, TxnFrameworkError, excerpt
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


def find_error(text: str, errors: Iterable[type[TxnFrameworkError]]) -> type[TxnFrameworkError]:
    """
    Return the error that a text names first, by its code or class; the text may be a line of a traceback.

    :raises InvalidInput: the text names none; the message has the nearest names.
    """
    names = {name.lower(): (name, one) for one in errors for name in (one.code, one.__name__)}
    words = [word for word in re.split(r"[^\w-]+", text.lower()) if word]
    for word in words:
        if word in names:
            return names[word][1]
    near = dict.fromkeys(names[one][0] for word in words for one in near_names(word, names))
    if near:
        raise InvalidInput(f"no error is named {excerpt(text)}; {question_of(near)}")
    raise InvalidInput(
        f"no error is named {excerpt(text)}; write a code such as TXN-302, or install the plugin it is of"
    )


@click.command()
@click.argument("code")
@output_option
def explain(code: str, output: str) -> None:
    """
    Explain an error by its code or class.

    CODE is a code such as TXN-302, the name of a class, or a line of a traceback (in quotes) that has one of them.

    Prints what the error means, what is known after it, at which level to retry, and what to do.
    """
    entry = entry_of(find_error(code, known_errors().values()))
    if output == "json":
        print_json(asdict(entry))
        return
    click.echo(f"{entry.code} {entry.error}\n")
    facts = {"meaning": entry.meaning, "known": entry.known, "retry": entry.retry, "to do": entry.advice}
    indent = " " * (max(map(len, facts)) + 2)
    print_facts({name: click.wrap_text(text, 100, "", indent) for name, text in facts.items()})
