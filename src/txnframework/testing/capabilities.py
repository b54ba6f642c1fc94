"""Capabilities: a test requires them, and a backend and its harness declare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from txnframework.model.steps import Reach

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__txnframework_requires__"


@dataclass(frozen=True)
class OfKind:
    """A capability identified by the value of an attribute, for example the type of a dispatcher."""

    attribute: str
    value: object

    @property
    def __name__(self) -> str:
        """The name in skip messages and in the summary."""
        return f"{self.attribute} {self.value}"

    def providedBy(self, subject: object) -> bool:  # noqa: N802 - as interfaces call it
        """Return whether the attribute of ``subject`` has this value."""
        return getattr(subject, self.attribute, None) == self.value


@dataclass(frozen=True)
class OfReach:
    """The capability of a store whose steps may be this wide, or wider."""

    reach: Reach

    @property
    def __name__(self) -> str:
        """The name in skip messages and in the summary."""
        return f"reach {self.reach.name}"

    def providedBy(self, subject: object) -> bool:  # noqa: N802 - as interfaces call it
        """Return whether ``subject`` is a store with such a reach."""
        return getattr(subject, "reach", Reach.PARTITION) >= self.reach


def requires(*needed: Any) -> Callable[[F], F]:
    """
    Skip the test, and name what is missing, unless the backend and its harness declare all capabilities in ``needed``.

    A capability is an interface that the backend provides, or a mixin of the harness. The capabilities are stored in an
    attribute of the test: a pytest mark with an interface as its only argument would mistake it for the test.
    """

    def mark(test: F) -> F:
        setattr(test, _ATTRIBUTE, (*needed, *required_by(test)))
        return test

    return mark


def required_by(test: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the capabilities that ``requires`` stored for this test."""
    found: tuple[Any, ...] = getattr(test, _ATTRIBUTE, ())
    return found


def declared(subjects: Iterable[object], harness: type, known: Iterable[Any]) -> frozenset[Any]:
    """Return the capabilities in ``known`` that a subject provides or that the harness class inherits from."""
    objects = tuple(subjects)
    return frozenset(
        one
        for one in known
        if (issubclass(harness, one) if isinstance(one, type) else any(map(one.providedBy, objects)))
    )


def name_of(capability: Any) -> str:
    """Return the name of an interface or of a mixin."""
    return str(capability.__name__)
