"""The signatures in the reference of the client are those of the code."""

from __future__ import annotations

import inspect
import textwrap
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import txnframework
from txnframework.client._handlers.options import RunOptions

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "client.md"
WIDTH = 120
GLUE = "\x00"
CLASSES = (
    txnframework.Client,
    txnframework.Transaction,
    txnframework.JoinedTransaction,
    txnframework.Producer,
    txnframework.Consumer,
    txnframework.Reader,
)


def calls_of(kind: type) -> dict[str, Any]:
    """Return the public methods and properties of a class, in alphabetical order."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    return {name: inspect.getattr_static(kind, name) for name in names}


def line_of(name: str, member: Any) -> str:
    """Return the signature of a method, without ``self``, or the type of a property."""
    if isinstance(member, property):
        assert member.fget is not None
        return f"{name}: {inspect.signature(member.fget).return_annotation}"
    signature = inspect.signature(member)
    parts, stars_seen = [], False
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not stars_seen:
            parts.append("*")
        stars_seen |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        parts.append(parameter_of(one))
    prefix = "await " if inspect.iscoroutinefunction(inspect.unwrap(member)) else ""
    returned = "" if inspect.isclass(member) else f" -> {signature.return_annotation}"
    # A line breaks between two parameters only.
    return f"{prefix}{name}({', '.join(parts)}){returned}".replace(" ", GLUE).replace(f",{GLUE}", ", ")


def parameter_of(one: inspect.Parameter) -> str:
    """Return a parameter with its type and its default."""
    star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    shown = f"{star}{one.name}: {one.annotation}"
    if one.default is one.empty:
        return shown
    default = one.default
    if isinstance(default, Enum):
        return f"{shown} = {default}"
    return f"{shown} = {default.__name__ if inspect.isclass(default) else repr(default)}"


def block_of(lines: list[str]) -> str:
    """Return a code block with wrapped lines."""
    wrapped = (
        textwrap.fill(one, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for one in lines
    )
    return "\n".join(("```text", *wrapped, "```")).replace(GLUE, " ")


def blocks() -> dict[str, str]:
    """Return the code block of each class and function."""
    found = {"txnframework": block_of([line_of("txnframework.open", txnframework.open)])}
    for kind in CLASSES:
        found[kind.__name__] = block_of([line_of(name, member) for name, member in calls_of(kind).items()])
    found["DeadLetter"] = block_of([line_of("DeadLetter", txnframework.DeadLetter)])
    hints = RunOptions.__annotations__
    found["RunOptions"] = block_of(
        [f"{name}: {getattr(hint, '__forward_arg__', hint)}" for name, hint in hints.items()]
    )
    return found


BLOCKS = blocks()


@pytest.mark.parametrize("name", BLOCKS)
def test_signatures_are_those_of_the_code(name: str) -> None:
    """The page has the signature of every public call, with parameters, types and defaults."""
    assert f"{BLOCKS[name]}\n" in PAGE.read_text(encoding="utf-8"), f"the page needs this block:\n{BLOCKS[name]}"
