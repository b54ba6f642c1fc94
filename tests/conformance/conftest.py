from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txnframework.errors import TxnFrameworkError
from txnframework.testing._suites._base import Suite, run_test

sys.path.insert(0, str(Path(__file__).parent))  # for what several of these tests have in common

FAILURES = (AssertionError, TimeoutError, pytest.fail.Exception, TxnFrameworkError)


def run(suite: type[Suite], harness: type[Any], name: str, arguments: dict[str, Any], directory: Path) -> None:
    case = type("Case", (suite,), {"harness": harness})()

    async def test() -> None:
        await getattr(case, name)(**arguments)

    try:
        asyncio.run(run_test(case, test, directory))
    except pytest.skip.Exception as skipped:
        raise RuntimeError(f"{name} was not run: {skipped}") from skipped


@pytest.fixture
def must_fail(tmp_path: Path) -> Callable[..., None]:
    """Run one test of a suite on a backend that breaks its rule: exactly that test must fail, and not be skipped."""

    def check(suite: type[Suite], harness: type[Any], name: str, **arguments: Any) -> None:
        with pytest.raises(FAILURES):
            run(suite, harness, name, arguments, tmp_path)

    return check


@pytest.fixture
def every_test_has_teeth() -> Callable[..., None]:
    """Assert that each test of a suite fails on some broken backend, except for the named ones."""

    def check(suite: type[Suite], broken: set[str], unbroken: set[str]) -> None:
        tests = {name for name, _ in inspect.getmembers(suite) if name.startswith("test_")}
        assert broken <= tests, f"no such tests: {sorted(broken - tests)}"
        assert tests - broken == unbroken, "tests that nothing can fail, or that something can by now"

    return check
