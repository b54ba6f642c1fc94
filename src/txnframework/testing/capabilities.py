"""Which promises a test needs, and which a backend makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__txnframework_requires__"


@dataclass(frozen=True)
class OfKind:
    """Asked for like an interface: provided by what has this value of an attribute, as a dispatcher of one type has."""

    attribute: str
    value: object

    @property
    def __name__(self) -> str:
        """What a skip and the summary call it."""
        return f"{self.attribute} {self.value}"

    def providedBy(self, subject: object) -> bool:  # noqa: N802 - as interfaces call it
        """Return whether the subject is of this kind."""
        return getattr(subject, self.attribute, None) == self.value


def requires(*needed: Any) -> Callable[[F], F]:
    """
    Skip the test, naming what is missing, unless the backend provides these interfaces and the harness these abilities.

    What is needed is kept as an attribute of the test: an interface as the only argument of a pytest mark would be
    taken for the function that is to be marked.
    """

    def mark(test: F) -> F:
        setattr(test, _ATTRIBUTE, (*needed, *required_by(test)))
        return test

    return mark


def required_by(test: Callable[..., Any]) -> tuple[Any, ...]:
    """Return what ``requires`` was given for this test."""
    found: tuple[Any, ...] = getattr(test, _ATTRIBUTE, ())
    return found


def declared(subjects: Iterable[object], harness: type, known: Iterable[Any]) -> frozenset[Any]:
    """Return which interfaces of ``known`` one of the subjects provides, and which abilities of it the harness has."""
    objects = tuple(subjects)
    return frozenset(
        one
        for one in known
        if (issubclass(harness, one) if isinstance(one, type) else any(map(one.providedBy, objects)))
    )


def name_of(capability: Any) -> str:
    """Return the name of an interface or of an ability."""
    return str(capability.__name__)
