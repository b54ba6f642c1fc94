"""Every dispatcher that is installed keeps the rules of its subscription type."""

from __future__ import annotations

from txnframework.testing import DispatcherHarness, DispatcherSuite
from txnframework_dispatchers.plugin import txnframework_dispatchers

PROVIDERS = {provider.name: provider for provider in txnframework_dispatchers()}

for _name, _provider in PROVIDERS.items():
    _harness = type(f"{_name.title().replace('_', '')}Harness", (DispatcherHarness,), {"provider": _provider})
    _test = f"Test{_name.title().replace('_', '')}Dispatcher"
    globals()[_test] = type(_test, (DispatcherSuite,), {"harness": _harness, "__module__": __name__})


def test_every_type_is_there() -> None:
    """The types that the role names are provided."""
    assert {"exclusive", "failover", "shared", "key_shared"} <= set(PROVIDERS)
