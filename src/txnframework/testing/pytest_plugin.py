"""
pytest plugin: the fixture ``txn_stores``; for plugin authors, it runs the tests of the suites and prints a summary.

Every pytest run imports this module where the distribution is installed. So it has few imports, and it affects only
tests of the suites, and those that name the fixture.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Generator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from txnframework.testing.memory_stores import MemoryStores

pytest.register_assert_rewrite("txnframework.testing._suites")

_Found = dict[str, dict[str, list[str]]]
"""Per suite and harness: the declared capabilities, the undeclared ones and the known deviations."""

_SUITES = pytest.StashKey[list[type[Any]]]()
_ELSEWHERE = pytest.StashKey[_Found]()


def _is_suite(cls: object) -> bool:
    return getattr(cls, "__txnframework_suite__", False) is True


@pytest.fixture
def txn_stores() -> MemoryStores:
    """Empty stores in memory, with a clock to advance and faults (``txnframework.testing.MemoryStores``)."""
    from txnframework.testing.memory_stores import MemoryStores

    return MemoryStores()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test of a suite in its own event loop; leave all other tests to other plugins."""
    if not _is_suite(pyfuncitem.cls):
        return None
    # Not the item's function: pytest-asyncio, in auto mode, has replaced that by one that is no coroutine.
    method = getattr(pyfuncitem.instance, pyfuncitem.originalname)
    if not inspect.iscoroutinefunction(method):
        return None
    from txnframework.testing._suites._base import run_test

    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}

    @wraps(method)
    async def test() -> None:
        await method(**arguments)

    with tempfile.TemporaryDirectory(prefix="txnframework-") as directory, asyncio.Runner() as runner:
        runner.run(run_test(pyfuncitem.instance, test, Path(directory)))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the rule that a failed test of a suite checks, which is the test's docstring."""
    report = yield
    if report.failed and isinstance(item, pytest.Function) and _is_suite(item.cls):
        report.sections.append(("rule of the role", inspect.getdoc(item.obj) or "the test does not say"))
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    """Store the suites of this run for the summary."""
    suites = dict.fromkeys(item.cls for item in session.items if isinstance(item, pytest.Function))
    session.config.stash[_SUITES] = [cls for cls in suites if cls is not None and _is_suite(cls)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a pytest-xdist worker, send the results of its suites to the controller."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[__name__] = _found(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Merge the results of a pytest-xdist worker; a worker that crashed sends none."""
    found = getattr(node, "workeroutput", {}).get(__name__, {})
    node.config.stash.setdefault(_ELSEWHERE, {}).update(found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """
    Print, for each backend under test, its declared and undeclared capabilities and its known deviations.

    A backend with a failed test is reported as not certified.
    """
    found = _found(config) | config.stash.get(_ELSEWHERE, {})
    if not found:
        return
    terminalreporter.section("txnframework conformance")
    failed = [report.nodeid for outcome in ("failed", "error") for report in terminalreporter.stats.get(outcome, [])]
    for suite, parts in sorted(found.items()):
        failures = sum(f"::{suite.partition(' ')[0]}::" in nodeid for nodeid in failed)
        if failures:
            terminalreporter.write_line(f"{suite}: not certified, {failures} failed")
            continue
        terminalreporter.write_line(suite)
        for title, names in parts.items():
            terminalreporter.write_line(f"  {title}: {', '.join(names) or 'none'}")


def _found(config: pytest.Config) -> _Found:
    """Return the results of each suite that ran in this process."""
    suites = [suite for suite in config.stash.get(_SUITES, []) if suite.found is not None]
    if not suites:
        return {}
    from txnframework.testing.capabilities import name_of

    return {
        f"{suite.__name__} ({suite.harness.__name__})": {
            "declared": sorted(map(name_of, suite.found)),
            "not declared": sorted(map(name_of, {*suite.capabilities} - suite.found)),
            "known deviations": [f"{name}: {reason}" for name, reason in sorted(suite.deviations.items())],
        }
        for suite in suites
    }
