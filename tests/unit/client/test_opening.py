from __future__ import annotations

import asyncio
from typing import Any

import pytest

import txnframework
from txnframework import blocking

MEMORY = {"metadata": {"url": "memory:"}, "ledger": {"url": "memory:"}}


def test_with_instead_of_async_with() -> None:
    """The error says how a client is opened, and what plain ``with`` accepts."""
    opening: Any = txnframework.open(MEMORY)
    with pytest.raises(TypeError) as refused, opening:
        pass
    assert str(refused.value) == (
        "a client is opened by 'async with txnframework.open(...) as client'; "
        "'with' takes txnframework.blocking.open(...)"
    )


def test_what_is_not_opened_yet_is_no_client() -> None:
    """Calls and ``await`` raise errors with the remedy; Python's own introspection works as usual."""
    opening: Any = txnframework.open(MEMORY)
    sentence = "a client is opened by 'async with txnframework.open\\(...\\) as client'"
    with pytest.raises(AttributeError, match=f"^{sentence}, and the client, not this, has 'create_topic'$"):
        opening.create_topic("topic://public/default/a")

    async def wait() -> None:
        await opening

    with pytest.raises(TypeError, match=f"^{sentence}, not 'await'$"):
        asyncio.run(wait())
    assert not hasattr(opening, "__wrapped__")


def test_the_blocking_one() -> None:
    """The error of the blocking client names ``with`` instead."""
    opening: Any = blocking.open(MEMORY)
    sentence = "a client is opened by 'with txnframework.blocking.open\\(...\\) as client'"

    async def enter() -> None:
        async with opening:
            pass

    with pytest.raises(TypeError, match=f"^{sentence}; 'async with' takes txnframework.open\\(...\\)$"):
        asyncio.run(enter())
    with pytest.raises(AttributeError, match=f"^{sentence}, and the client, not this, has 'producer'$"):
        opening.producer("topic://public/default/a")
