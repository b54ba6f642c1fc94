"""Every dispatcher that is installed keeps the rules of its subscription type, and so does the template of plugins."""

from __future__ import annotations

import runpy
from importlib.resources import files

from txnframework.testing import DispatcherHarness, DispatcherSuite
from txnframework_dispatchers.plugin import txnframework_dispatchers

EXAMPLE = runpy.run_path(str(files("txnframework.cli") / "plugin_template" / "plugin.py"))
PROVIDERS = {
    provider.name: provider for provider in (*txnframework_dispatchers(), *EXAMPLE["txnframework_dispatchers"]())
}

for _name, _provider in PROVIDERS.items():
    _harness = type(f"{_name.title().replace('_', '')}Harness", (DispatcherHarness,), {"provider": _provider})
    _test = f"Test{_name.title().replace('_', '')}Dispatcher"
    globals()[_test] = type(_test, (DispatcherSuite,), {"harness": _harness, "__module__": __name__})


def test_every_type_is_there() -> None:
    """The types that the role names are provided."""
    assert {"exclusive", "failover", "shared", "key_shared"} <= set(PROVIDERS)
