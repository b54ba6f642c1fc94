"""The suites as shipped to authors of plugins."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import txnframework.testing
from txnframework.testing import BufferSuite, LedgerStoreSuite, MetadataStoreSuite
from txnframework.testing._suites._base import Suite

SUITES = (MetadataStoreSuite, LedgerStoreSuite, BufferSuite)


@pytest.mark.parametrize("suite", SUITES)
def test_no_rule_hides_another(suite: type[Suite]) -> None:
    """A suite combines classes of rules; with a duplicate name, one test would not run."""
    names = Counter(name for cls in suite.__mro__ for name in vars(cls) if name.startswith("test"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("suite", SUITES)
def test_every_test_states_its_rule(suite: type[Suite]) -> None:
    """The docstring of every test states the rule for backends."""
    tests = [getattr(suite, name) for name in dir(suite) if name.startswith("test")]
    assert len(tests) > 40
    assert [test.__name__ for test in tests if not test.__doc__] == []


def test_suites_name_no_backend() -> None:
    """Suites refer to roles only, so that all backends have the same rules."""
    package = Path(str(txnframework.testing.__file__)).parent
    for module in package.rglob("*.py"):
        imported = {
            alias.name if isinstance(node, ast.Import) else str(node.module)
            for node in ast.walk(ast.parse(module.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not [name for name in imported if name.startswith("txnframework_")], module


def test_plugin_of_pytest_is_light() -> None:
    """The pytest plugin imports no suite, so that asserts of suites can be rewritten."""
    code = (
        "import sys, txnframework.testing.pytest_plugin as _; "
        "print(sorted(name for name in sys.modules if name.startswith('txnframework.testing.')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['txnframework.testing.pytest_plugin']"
