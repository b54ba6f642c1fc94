"""Base class of the suites, and how one test of a suite is run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import pytest

from txnframework.model.names import NAME_BYTES_MAX
from txnframework.testing.capabilities import declared, name_of, required_by
from txnframework.testing.harness import Harness

T = TypeVar("T")

TEST_SECONDS_MAX = 120.0
"""The time limit of one test, in seconds: a test that hangs fails and does not stop the run."""


class Suite:
    """
    Base class of all suites: subclass a suite as ``class TestX(SomeSuite)`` and set ``harness`` to run all its tests.

    Override a test only to declare that the backend is known to break its rule, with
    ``@pytest.mark.xfail(strict=True, reason=...)``. Capabilities that a backend does not declare need no override:
    their tests are skipped.
    """

    __txnframework_suite__: ClassVar[bool] = True
    harness: ClassVar[type[Harness[Any]]]
    capabilities: ClassVar[tuple[Any, ...]] = ()
    deviations: ClassVar[dict[str, str]] = {}
    found: ClassVar[frozenset[Any] | None] = None
    data: Harness[Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited = [base for base in cls.__mro__[1:] if issubclass(base, Suite)]
        deviations = dict(cls.deviations)
        for name, test in vars(cls).items():
            if name.startswith("test") and any(name in vars(base) for base in inherited):
                deviations[name] = _known_deviation(cls, name, test)
        for name in {name for base in inherited for name in vars(base) if name.startswith("test")}:
            homes = [base for base in inherited if name in vars(base) and name not in cls.deviations]
            if len(homes) > 1 and not issubclass(homes[0], homes[-1]):
                raise TypeError(f"{homes[0].__name__} and {homes[-1].__name__} both have {name}: only one would be run")
        cls.deviations = deviations
        cls.found = None

    def subjects(self, opened: Any) -> tuple[object, ...]:
        """Return the objects whose interfaces declare the capabilities of the backend."""
        return (opened,)

    async def soon(self, awaitable: Awaitable[T], seen: Callable[[], object] | None = None) -> T:
        """
        Await ``awaitable`` while the backend does its delayed work, and return its result.

        :raises AssertionError: it did not return within ``patience_s``. The message names what did not return, the
            place where it waits, and the last value of ``seen``.
        """
        __tracebackhide__ = True
        what = name_of_awaitable(awaitable)
        task = asyncio.ensure_future(awaitable)
        try:
            async with asyncio.timeout(self.data.patience_s) as limit:
                while not task.done():
                    await self.data.settle()
                    await asyncio.wait({task}, timeout=0.01)
        except TimeoutError:
            if not limit.expired():
                raise
            waits = f"{what} did not return within {self.data.patience_s:g} s; it waits in {place_of(task)}"
            raise AssertionError(waits if seen is None else f"{waits}; seen last: {seen()}") from None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return task.result()

    @asynccontextmanager
    async def started(self, coroutine: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
        """Run a coroutine beside the test until it waits; it is cancelled at the end of the block."""
        task = asyncio.get_running_loop().create_task(coroutine)
        try:
            await self.data.settle()
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def run_test(case: Suite, test: Callable[[], Awaitable[object]], directory: Path) -> None:
    """Run one test of a suite on its own data; skip it, and name what is missing, if a capability is not declared."""
    __tracebackhide__ = True
    kind = type(case)
    case.data = kind.harness(directory)
    try:
        async with asyncio.timeout(TEST_SECONDS_MAX) as limit:
            if kind.found is None:
                kind.found = await _find_capabilities(case)
            missing = [name_of(needed) for needed in required_by(test) if needed not in kind.found]
            if missing:
                pytest.skip(f"not declared by {kind.harness.__name__}: {', '.join(sorted(missing))}")
            await test()
    except TimeoutError as error:
        if not limit.expired():
            raise
        # The place where the test waited is printed above, in the cause.
        raise AssertionError(
            f"{getattr(test, '__name__', 'the test')} did not end in {TEST_SECONDS_MAX:g} s"
        ) from error
    finally:
        await case.data.destroy()


def name_of_awaitable(awaitable: object) -> str:
    """Return the name of an awaitable for failure messages."""
    return str(getattr(awaitable, "__qualname__", None) or type(awaitable).__qualname__)


def place_of(task: asyncio.Future[Any]) -> str:
    """Return the innermost function outside asyncio in which a task waits, with its file and connection."""
    step: Any = task.get_coro() if isinstance(task, asyncio.Task) else None
    place = "something that has no frame"
    while (frame := getattr(step, "cr_frame", None)) is not None:
        file = Path(frame.f_code.co_filename)
        if file.parent.name != "asyncio":
            place = f"{step.__qualname__} ({file.name}:{frame.f_lineno})"
        step = step.cr_await
    return place


async def _find_capabilities(case: Suite) -> frozenset[Any]:
    """Return the capabilities that a client declares; it is opened on data that no test uses."""
    probe_directory = case.data.directory / "capabilities"
    probe_directory.mkdir()
    probe = case.harness(probe_directory)
    try:
        async with probe.open() as opened:
            return declared(case.subjects(opened), type(case).harness, case.capabilities)
    finally:
        await probe.destroy()


def _known_deviation(cls: type, name: str, test: object) -> str:
    """
    Return the reason of a strict xfail mark.

    :raises TypeError: the overriding test has no such mark.
    """
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "xfail" and mark.kwargs.get("strict") is True and mark.kwargs.get("reason"):
            return str(mark.kwargs["reason"])
    raise TypeError(
        f"{cls.__name__}.{name} overrides a test of the suite; if the backend is known to break the rule, mark it "
        "@pytest.mark.xfail(strict=True, reason=...)"
    )


_FIRST, _COUNT = 0x4E00, 20_000
_BYTES_EACH: Final = 3


def longest_name(number: int) -> str:
    """Return a name of NAME_BYTES_MAX bytes in which every byte is escaped; each ``number`` gives another name."""
    # Characters from all over the script, so that no store can shorten the names by compression.
    state = number + 1
    characters: list[str] = []
    while len(characters) < NAME_BYTES_MAX // _BYTES_EACH:
        state = (state * 1_103_515_245 + 12_345) % (1 << 31)
        characters.append(chr(_FIRST + (state >> 8) % _COUNT))
    return "".join(characters)


def longest_segment(number: int) -> str:
    """Return a segment name of such a topic: ``tenant/namespace/name`` has NAME_BYTES_MAX bytes in all."""
    name = longest_name(number)
    tenant, namespace, rest = name[:28], name[28:56], name[56:]
    # The two slashes count towards the bytes, and one byte remains.
    return f"segment://{tenant}/{namespace}/{rest[:-1]}a/0000-ffff-{2**63 - 1}"
