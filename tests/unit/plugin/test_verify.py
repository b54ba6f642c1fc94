from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from zope.interface import Attribute, Interface, alsoProvides, implementer, taggedValue

from txnframework.errors import PluginContractError
from txnframework.plugin import Origin, Provider, verify_provider

ORIGIN = Origin("txnframework-broken", "2.0", "broken")


class IShelf(Interface):
    label: str = Attribute("What is written on it.")

    async def put(item: str, place: int) -> None:  # noqa: N805
        """Put it."""

    async def close() -> None:
        """Close."""


class ILockedShelf(IShelf):
    async def lock(key: str) -> None:  # noqa: N805
        """Lock."""


class Right:
    label = "a"

    async def put(self, item: str, place: int) -> None: ...

    async def close(self) -> None: ...


def broken(**methods: Any) -> Any:
    """Return an implementer that is right but for ``methods``; None removes one."""
    body = {**{k: v for k, v in vars(Right).items() if k in ("label", "put", "close")}, **methods}
    made = type("Made", (), {key: value for key, value in body.items() if value is not None})
    return implementer(IShelf)(made)


def test_right_class_object_and_provider_pass() -> None:
    """A correct class, object and provider are accepted."""
    kind = implementer(IShelf)(type("Good", (Right,), {}))

    async def opened(context: object) -> Any:
        return kind()

    verify_provider(IShelf, kind)
    verify_provider(IShelf, kind())
    verify_provider(IShelf, Provider("good", opened, kind))


async def _renamed(self: Any, thing: str, place: int) -> None: ...
async def _swapped(self: Any, place: int, item: str) -> None: ...
async def _keyword_only(self: Any, item: str, *, place: int) -> None: ...
async def _too_few(self: Any, item: str) -> None: ...
async def _too_many(self: Any, item: str, place: int, colour: str) -> None: ...
async def _extra_keyword(self: Any, item: str, place: int, *, colour: str) -> None: ...
async def _generator(self: Any, item: str, place: int) -> AsyncIterator[int]:
    yield 1


def _sync(self: Any, item: str, place: int) -> None: ...


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (None, "the method is missing"),
        (7, "it is a value of type int, not a method"),
        (_sync, "it is not 'async def'"),
        (_generator, "it is an async generator; it has to be an 'async def' that returns a value"),
        (_renamed, "parameter 1 is named 'thing', the role names it 'item'"),
        (_swapped, "parameter 1 is named 'place', the role names it 'item'"),
        (_keyword_only, "parameter 'place' is keyword-only, but roles are called by position"),
        (_too_few, "parameter 'place' is missing"),
        (_too_many, "parameter 'colour' is not the role's and has no default"),
        (_extra_keyword, "parameter 'colour' is not the role's and has no default"),
    ],
)
@pytest.mark.parametrize("as_object", [False, True], ids=["class", "object"])
def test_broken_method_is_named(method: Any, reason: str, as_object: bool) -> None:
    """The error names distribution, version, role and method, and says what is wrong."""
    kind = broken(put=method)
    with pytest.raises(PluginContractError) as caught:
        verify_provider(IShelf, kind() if as_object else kind, ORIGIN)
    assert str(caught.value) == (f"txnframework-broken 2.0 does not keep the contract of IShelf.put: {reason}")
    assert (caught.value.distribution, caught.value.version) == ("txnframework-broken", "2.0")
    assert (caught.value.role, caught.value.method) == ("IShelf", "put")


class IPlainShelf(Interface):
    taggedValue("plain_methods", True)

    def count(colour: str) -> int:  # noqa: N805
        """Count."""


@pytest.mark.parametrize("as_object", [False, True], ids=["class", "object"])
def test_plain_methods_are_plain(as_object: bool) -> None:
    """A method that must be plain is neither a coroutine function nor a generator."""

    def right(self: Any, colour: str) -> int:
        return 1

    async def coroutine(self: Any, colour: str) -> int:
        return 1

    async def generator(self: Any, colour: str) -> AsyncIterator[int]:
        yield 1

    def made(method: Any) -> Any:
        kind = implementer(IPlainShelf)(type("Made", (), {"count": method}))
        return kind() if as_object else kind

    verify_provider(IPlainShelf, made(right))
    for wrong in (coroutine, generator):
        with pytest.raises(PluginContractError, match="it is 'async def'; it has to be a plain 'def'"):
            verify_provider(IPlainShelf, made(wrong))


def test_more_than_the_role_asks_is_allowed() -> None:
    """Defaults, a catch-all and a wrapped coroutine function do not break a positional call."""

    async def generous(self: Any, item: str, place: int, colour: str = "", *, size: int = 1, **rest: int) -> None: ...

    async def catch_all(self: Any, *arguments: Any) -> None: ...

    @functools.wraps(Right.put)
    async def wrapped(self: Any, *arguments: Any) -> None: ...

    for method in (generous, catch_all, wrapped):
        verify_provider(IShelf, broken(put=method))
        verify_provider(IShelf, broken(put=method)())


def test_attribute_is_verified_on_objects_only() -> None:
    """A class may set its attributes in the constructor; an object must have them."""
    kind = broken(label=None)
    verify_provider(IShelf, kind)
    with pytest.raises(PluginContractError, match=r"of IShelf\.label: the attribute is missing"):
        verify_provider(IShelf, kind(), ORIGIN)


def test_an_object_of_a_verified_class() -> None:
    """Only what the object itself has is verified: its attributes, a method that it replaces, and its own promises."""
    kind = broken()
    verify_provider(IShelf, kind(), ORIGIN, kind)
    lacking = broken(label=None)
    with pytest.raises(PluginContractError, match=r"of IShelf\.label: the attribute is missing"):
        verify_provider(IShelf, lacking(), ORIGIN, lacking)
    replacing = kind()
    replacing.put = _sync
    with pytest.raises(PluginContractError, match=r"of IShelf\.put: it is not 'async def'"):
        verify_provider(IShelf, replacing, ORIGIN, kind)
    promising = kind()
    alsoProvides(promising, ILockedShelf)
    with pytest.raises(PluginContractError, match=r"of ILockedShelf\.lock: the method is missing"):
        verify_provider(IShelf, promising, ORIGIN, kind)
    with pytest.raises(PluginContractError, match=r"of IShelf\.put: the method is missing"):
        verify_provider(IShelf, broken(put=None)(), ORIGIN, kind)


def test_undeclared_role_is_refused() -> None:
    """An object with the right methods must also declare the role."""
    with pytest.raises(PluginContractError, match=r"Right does not declare @implementer\(IShelf\)"):
        verify_provider(IShelf, Right, ORIGIN)
    with pytest.raises(PluginContractError, match=r"^an object does not keep"):
        verify_provider(IShelf, Right())


def test_declared_capability_is_verified_too() -> None:
    """A declared marker sub-interface is verified, even if only the role is requested."""
    kind = implementer(ILockedShelf)(type("Unlockable", (Right,), {}))
    with pytest.raises(PluginContractError, match=r"of ILockedShelf\.lock: the method is missing"):
        verify_provider(IShelf, kind, ORIGIN)
