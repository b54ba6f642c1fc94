from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from txnframework.errors import PluginContractError, PluginError, UnknownPlugin
from txnframework.plugin import Command, hookimpl, load_commands, load_plugins
from txnframework.plugin._errors import unknown_plugin

COMMANDS = """
from txnframework.plugin import Command, hookimpl

@hookimpl
def txnframework_commands():
    return [Command({name!r}, "A command.", lambda: None)]
"""

SERVERS = """
from txnframework.plugin import EmbeddedServer, hookimpl

@hookimpl
def txnframework_servers():
    return [EmbeddedServer("zz-server", lambda: None)]
"""

ASYNC_DISPATCHER = """
from txnframework.interfaces import IDispatcher
from txnframework.model import Ordering
from txnframework.plugin import Provider, hookimpl
from zope.interface import implementer

@implementer(IDispatcher)
class Async:
    subscription_type = "zz"
    ordering = Ordering.NONE
    stands_by = False
    def attach(self, consumer): ...
    def detach(self, consumer_id): ...
    def permit(self, consumer_id, messages): ...
    async def assign(self, waiting): ...
    def released(self, positions): ...

async def opened(context):
    return Async()

@hookimpl
def txnframework_dispatchers():
    return [Provider("zz", opened, Async)]
"""


def left_out() -> PluginError:
    """Return the error of the only installed plugin of a test that cannot be used."""
    errors: list[PluginError] = []
    load_plugins(on_error=errors.append)
    (error,) = (one for one in errors if (one.distribution or "").startswith("zz"))
    return error


def returning(value: Any) -> SimpleNamespace:
    @hookimpl
    def txnframework_commands() -> Any:
        return value

    return SimpleNamespace(__name__="fake", txnframework_commands=txnframework_commands)


def test_installed_distribution_is_found(install: Any) -> None:
    """An entry point of the group is enough; its distribution and version are known."""
    install("zz-good", COMMANDS.format(name="zz-run"))
    registered = load_plugins().commands()["zz-run"]
    assert (registered.origin.distribution, registered.origin.version) == ("zz-good", "1.2.3")


def test_one_name_claimed_twice_names_both(install: Any) -> None:
    """Neither plugin wins by the order of installation."""
    install("zz-first", COMMANDS.format(name="zz-run"))
    install("zz-second", COMMANDS.format(name="zz-run"), version="4.5")
    error = left_out()
    assert str(error) == "zz-second 4.5 and zz-first 1.2.3 both provide the command 'zz-run'; uninstall one of them"
    assert (error.distribution, error.version) == ("zz-second", "4.5")


def test_a_server_that_two_plugins_offer_names_both(install: Any) -> None:
    """The error names both distributions; the commands of both can still be listed."""
    install("zz-first", SERVERS)
    install("zz-second", SERVERS)
    plugins = load_plugins()
    with pytest.raises(PluginError, match="both provide the embedded server 'zz-server'; uninstall one of them"):
        plugins.embedded_server("zz-server")
    load_commands()


def test_one_entry_point_name_in_two_distributions_names_both(install: Any) -> None:
    """The second is not skipped silently, as pluggy by itself would."""
    install("zz-first", COMMANDS.format(name="zz-run"), entry_point="zz_same")
    install("zz-second", COMMANDS.format(name="zz-walk"), entry_point="zz_same")
    message = str(left_out())
    assert "both have the entry point 'zz_same'; uninstall one of them" in message
    assert "zz-first 1.2.3" in message
    assert "zz-second 1.2.3" in message


def test_failing_import_names_distribution_and_keeps_its_cause(install: Any) -> None:
    """A missing driver is the most frequent reason: the error has its name."""
    install("zz-broken", "import zz_driver_that_is_missing")
    error = left_out()
    assert str(error) == (
        "zz-broken 1.2.3 cannot be loaded: importing its entry point 'zz_broken' (zz_broken) failed with "
        "ModuleNotFoundError: No module named 'zz_driver_that_is_missing'"
    )
    assert isinstance(error.__cause__, ModuleNotFoundError)


def test_a_broken_installed_plugin_fails_only_where_it_is_needed(
    install: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Programs that do not use it are warned and go on; a name that it may provide is refused with the reason."""
    install("zz-broken", "import zz_driver_that_is_missing")
    install("zz-good", COMMANDS.format(name="zz-run"))
    plugins = load_plugins()
    assert "zz-run" in plugins.commands()
    (warned,) = [one for one in caplog.records if "zz-broken" in one.getMessage()]
    assert warned.levelname == "WARNING"
    with pytest.raises(UnknownPlugin, match=r"left out: zz-broken 1\.2\.3 cannot .*zz_driver_that_is_missing"):
        plugins.metadata_store("zz")
    with pytest.raises(PluginError, match="'hopeless'"):
        load_plugins([SimpleNamespace(__name__="hopeless")])


def test_a_broken_distribution_is_not_to_be_installed_again() -> None:
    """The package is installed, so the error gives the reason and no pip command."""
    reason = PluginError("txnframework-nats 1.0 cannot be loaded", "txnframework-nats", "1.0")
    error = unknown_plugin("metadata store", "nats", (), [reason])
    assert "left out: txnframework-nats 1.0 cannot be loaded" in str(error)
    assert "pip install" not in str(error)
    other = unknown_plugin("metadata store", "nats", (), [PluginError("zz-other is broken", "zz-other", "1.0")])
    assert "pip install txnframework-nats" in str(other)


def test_broken_contract_names_distribution_and_method(install: Any) -> None:
    """The class is verified when it is loaded, before anything is opened."""
    install("zz-async", ASYNC_DISPATCHER)
    error = left_out()
    assert isinstance(error, PluginContractError)
    assert str(error) == (
        "zz-async 1.2.3 does not keep the contract of IDispatcher.assign: it is 'async def'; it has to be a plain 'def'"
    )


def test_tolerant_loading_leaves_out_the_broken_only(install: Any) -> None:
    """With on_error, other plugins are loaded; a plugin is registered completely or not at all."""
    install("zz-a-broken", "raise RuntimeError('boom')")
    install("zz-b-good", COMMANDS.format(name="zz-run"))
    install("zz-c-async", ASYNC_DISPATCHER + COMMANDS.format(name="zz-half"))
    errors: list[PluginError] = []
    commands = load_plugins(on_error=errors.append).commands()
    assert "zz-run" in commands
    assert "zz-half" not in commands
    assert [error.distribution for error in errors if (error.distribution or "").startswith("zz")] == [
        "zz-a-broken",
        "zz-c-async",
    ]


def test_a_plugin_passed_in_and_installed_is_loaded_once(install: Any) -> None:
    """Passing a module that is installed as well is no duplicate."""
    install("zz-good", COMMANDS.format(name="zz-run"))
    import zz_good  # type: ignore[import-not-found]

    assert load_plugins([zz_good, zz_good]).commands()["zz-run"].origin.distribution == "zz-good"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (7, "failed in its hook txnframework_commands: TypeError: 'int' object is not iterable"),
        (["text"], "returned a value of type str from txnframework_commands, which takes Command values"),
        (
            [Command("No Good", "", lambda: pytest.fail("loaded"))],
            "gave the name 'No Good' in txnframework_commands; "
            "a name is lower-case letters, digits, '_', '-', '.', a letter first",
        ),
        (
            [Command("zz", "", lambda: pytest.fail("loaded"))] * 2,
            "gave the name 'zz' twice in txnframework_commands",
        ),
    ],
)
def test_wrong_result_of_a_hook(value: Any, reason: str) -> None:
    """The result of a hook is checked before it is used."""
    with pytest.raises(PluginError) as caught:
        load_plugins([returning(value)])
    assert str(caught.value) == f"plugin 'fake' (passed in by the program) {reason}"


def test_hook_that_raises_keeps_its_cause() -> None:
    """The error says that the defect is in the plugin."""

    @hookimpl
    def txnframework_commands() -> Any:
        raise LookupError("nothing there")

    with pytest.raises(
        PluginError, match="failed in its hook txnframework_commands: LookupError: nothing there"
    ) as caught:
        load_plugins([SimpleNamespace(__name__="fake", txnframework_commands=txnframework_commands)])
    assert isinstance(caught.value.__cause__, LookupError)


def test_misspelt_hook_is_refused() -> None:
    """A misspelt hook would never be called, so it is refused."""

    @hookimpl
    def txnframework_bufers() -> Any:
        return []

    with pytest.raises(PluginError, match="does not fit the hooks of this release: unknown hook 'txnframework_bufers'"):
        load_plugins([SimpleNamespace(__name__="fake", txnframework_bufers=txnframework_bufers)])


def test_object_without_hooks_is_refused() -> None:
    """The usual reason is a forgotten decorator."""
    with pytest.raises(PluginError, match=r"has no hook implementation: decorate its hook functions with"):
        load_plugins([SimpleNamespace(__name__="fake")])
