from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from txnframework.cli import _groups, main
from txnframework.cli._app import run
from txnframework.cli._options import config_option
from txnframework.errors import TxnFrameworkError, Unavailable
from txnframework.plugin import Command, hookimpl


class Result(SimpleNamespace):
    status: int
    out: str
    err: str


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the command line with plugins passed in."""

    def invoked(*arguments: str, plugins: tuple[object, ...] = ()) -> Result:
        status = run(arguments, plugins)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Result(status=status, out=out, err=err)

    return invoked


def bringing(name: str, load: Any, help_: str = "Show something.", group: str = "") -> SimpleNamespace:
    @hookimpl
    def txnframework_commands() -> list[Command]:
        return [Command(name, help_, load, group)]

    return SimpleNamespace(__name__="fake", txnframework_commands=txnframework_commands)


def broken() -> SimpleNamespace:
    @hookimpl
    def txnframework_commands() -> list[Command]:
        raise RuntimeError("boom")

    return SimpleNamespace(__name__="hopeless", txnframework_commands=txnframework_commands)


def failing(error: Exception) -> SimpleNamespace:
    @click.command()
    def fail() -> None:
        raise error

    return bringing("zz-fail", lambda: fail)


BROKEN = "plugin 'hopeless' (passed in by the program) failed in its hook txnframework_commands: RuntimeError: boom"


def test_help_lists_plugins_commands_without_loading_them(invoke: Any) -> None:
    """Listing a command does not import its dependencies."""
    result = invoke("--help", plugins=(bringing("zz-demo", lambda: pytest.fail("loaded")),))
    assert result.status == 0
    for word in ("check", "init", "plugins", "zz-demo", "Show something.", "Exit status"):
        assert word in result.out


def test_help_survives_a_broken_plugin(invoke: Any) -> None:
    """The other commands are usable, and the broken one shows the reason."""
    result = invoke("--help", plugins=(broken(), bringing("zz-demo", lambda: pytest.fail("loaded"))))
    assert result.status == 0
    assert "zz-demo" in result.out
    assert BROKEN in " ".join(result.out.split())


def test_command_of_a_plugin_runs_with_its_own_status(invoke: Any) -> None:
    """A plugin's command gets its arguments and decides its exit status."""

    @click.command()
    @click.argument("word")
    @click.pass_context
    def demo(ctx: click.Context, word: str) -> None:
        click.echo(f"said {word}")
        ctx.exit(1)

    result = invoke("zz-demo", "hello", plugins=(bringing("zz-demo", lambda: demo),))
    assert (result.status, result.out) == (1, "said hello\n")


def test_command_that_cannot_be_loaded(invoke: Any) -> None:
    """The error is one sentence with the distribution and the reason; status 2."""

    def load() -> Any:
        raise ModuleNotFoundError("No module named 'zz_driver'")

    result = invoke("zz-demo", plugins=(bringing("zz-demo", load),))
    assert result.status == 2
    assert result.err == (
        "Error: plugin 'fake' (passed in by the program) cannot load its command 'zz-demo': "
        "ModuleNotFoundError: No module named 'zz_driver'\n"
    )
    result = invoke("zz-demo", plugins=(bringing("zz-demo", lambda: 7),))
    assert result.err.endswith("returned a value of type int as its command 'zz-demo', not a click command\n")


def test_command_named_like_the_cores_own(invoke: Any) -> None:
    """The core's command is used, and the collision is reported."""
    plugin = bringing("check", lambda: pytest.fail("loaded"))
    result = invoke("plugins", plugins=(plugin,))
    assert result.status == 1
    assert "provides the command 'check', which core has already" in result.err
    assert "Validate a configuration file." in invoke("check", "--help", plugins=(plugin,)).out


def test_command_in_a_group_of_the_core(invoke: Any) -> None:
    """The command is listed in its group only; listing imports nothing."""
    plugin = bringing(
        "zz-look", lambda: click.Command("zz-look", callback=lambda: click.echo("seen")), group="transaction"
    )
    assert invoke("transaction", "zz-look", plugins=(plugin,)).out == "seen\n"
    listed = bringing("zz-look", lambda: pytest.fail("loaded"), "Show something.", "transaction")
    assert "zz-look" in invoke("transaction", "--help", plugins=(listed,)).out
    for arguments in (("--help",), ("topic", "--help")):
        assert "zz-look" not in invoke(*arguments, plugins=(listed,)).out
    assert invoke("zz-look", plugins=(listed,)).status == 2
    assert "No such command 'zz-look'" in invoke("transaction", "zz-look").err


def test_command_where_it_cannot_be_typed(invoke: Any) -> None:
    """A command for an unknown group, or with a name of its group's own command, is reported."""
    for name, group, reason in (
        ("zz-look", "zz-group", " in an unknown group (allowed: serve, transaction)"),
        ("list", "transaction", ", which core has already"),
    ):
        result = invoke("plugins", plugins=(bringing(name, lambda: pytest.fail("loaded"), group=group),))
        assert result.status == 1
        assert f"provides the command '{group} {name}'{reason}" in " ".join(result.err.split())


def test_unknown_command_names_the_nearest_and_the_broken_plugins(invoke: Any) -> None:
    """The unknown command may belong to a broken plugin."""
    result = invoke("zz-demo", plugins=(broken(),))
    assert result.status == 2
    assert "No such command 'zz-demo'" in result.err
    assert f"Note: {BROKEN}" in result.err


def test_a_mistyped_command_is_compared_with_all(invoke: Any) -> None:
    """The comparison includes commands that are not imported, and those of plugins."""
    assert "No such command 'topik'. Did you mean 'topic'" in invoke("topik", "list").err
    demo = bringing("zz-demo", lambda: pytest.fail("loaded"))
    assert "No such command 'zz-dmo'. Did you mean 'zz-demo'?\n" in invoke("zz-dmo", plugins=(demo,)).err


def test_a_command_of_a_plugin_that_is_not_installed_is_known(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of a distribution that is not installed names that distribution."""
    monkeypatch.setitem(_groups.DISTRIBUTIONS, "zz-far", "txnframework-far")
    result = invoke("zz-far")
    assert result.status == 2
    assert "It is part of the distribution txnframework-far, which is not installed." in result.err


def test_a_group_whose_distributions_are_not_installed(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its help names them, with --help and without arguments."""
    monkeypatch.setattr(_groups, "load_commands", lambda _extra, **_: {})
    for arguments in (("serve", "--help"), ("serve",)):
        result = invoke(*arguments)
        told = " ".join((result.out + result.err).split())
        assert "'serve pulsar' is part of the distribution txnframework-pulsar, which is not installed." in told


def test_plugins_as_json_and_table(invoke: Any) -> None:
    """Both list every plugin with its role and distribution."""
    plugin = bringing("zz-demo", lambda: pytest.fail("loaded"))
    listed = json.loads(invoke("plugins", "--output", "json", plugins=(plugin,)).out)
    assert {
        "role": "command",
        "name": "zz-demo",
        "distribution": None,
        "version": None,
        "capabilities": [],
        "families": [],
    } in listed
    table = invoke("plugins", plugins=(plugin,))
    assert "zz-demo" in table.out
    assert "(passed in)" in table.out


def test_the_list_of_plugins_is_no_wider_than_a_page(invoke: Any) -> None:
    """In a pipe, where lines are not folded, guarantees are listed one in a line, on request only."""
    listed, guaranteed = invoke("plugins"), invoke("plugins", "--guarantees")
    for result in (listed, guaranteed):
        assert result.status == 0
        assert max(map(len, result.out.splitlines())) <= 110
    assert "IDurableStore" not in listed.out
    assert re.search(r"metadata store +\S+ +IDurableStore\n", re.sub(" +\n", "\n", guaranteed.out))


def test_a_shell_completes_commands(
    invoke: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The completion script and the completions are written unfiltered; click writes bytes."""
    monkeypatch.setenv("COMP_WORDS", "txnframework chec")
    monkeypatch.setenv("COMP_CWORD", "1")
    for asked, begins in (("zsh_source", "#compdef txnframework"), ("bash_complete", "plain,check\n")):
        monkeypatch.setenv("_TXNFRAMEWORK_COMPLETE", asked)
        with pytest.raises(SystemExit) as ended:
            invoke()
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(begins)


def test_plugins_reports_what_cannot_be_used(invoke: Any) -> None:
    """The list is shown, the error goes to standard error, and the status is 1."""
    result = invoke("plugins", plugins=(broken(), bringing("zz-demo", lambda: pytest.fail("loaded"))))
    assert result.status == 1
    assert "zz-demo" in result.out
    assert result.err == f"Error: {BROKEN}\n"


def test_init_writes_and_does_not_overwrite(invoke: Any, tmp_path: Path) -> None:
    """``init`` does not overwrite an edited file."""
    path = tmp_path / "txn.toml"
    assert invoke("init", str(path)).status == 0
    assert "[metadata]" in path.read_text()
    path.write_text("mine")
    result = invoke("init", str(path))
    assert (result.status, result.err) == (2, f"Error: {path}: file already exists; --force overwrites it\n")
    assert path.read_text() == "mine"
    assert json.loads(invoke("init", str(path), "--force", "--output", "json").out) == {"file": str(path)}
    assert path.read_text() != "mine"
    result = invoke("init", str(tmp_path / "none" / "txn.toml"))
    assert (result.status, result.err) == (
        2,
        f"Error: {tmp_path / 'none' / 'txn.toml'}: cannot write the file: No such file or directory\n",
    )


def test_check_places_what_is_wrong(invoke: Any, tmp_path: Path) -> None:
    """One line on standard error has file, key, problem and allowed values; status 2."""
    path = tmp_path / "txn.toml"
    path.write_text('[metadata]\nurl = "zz-none://u:sesame@h"\n')
    result = invoke("check", str(path))
    assert result.status == 2
    assert result.err.startswith(f"Error: {path}: metadata.url: no metadata store named 'zz-none' is installed")
    assert result.err.count("\n") == 1
    assert "sesame" not in result.err
    path.write_text("[domains.segment]\nbufer = 'x'\n")
    assert invoke("check", str(path)).err == (
        f"Error: {path}: domains.segment: unknown key 'bufer'; did you mean 'buffer'? "
        "(allowed: buffer, coordinator, pending_ack)\n"
    )
    result = invoke("check", str(tmp_path / "none.toml"))
    assert (result.status, result.err) == (
        2,
        f"Error: {tmp_path / 'none.toml'}: file not found; 'txnframework init' writes one\n",
    )


def test_a_table_twice_is_named(invoke: Any, tmp_path: Path) -> None:
    """This happens if the tables of two plugins are copied from the file that init writes."""
    file = tmp_path / "twice.toml"
    file.write_text("[metadata.options]\n[metadata.options]\n")
    refused = invoke("check", str(file))
    assert refused.status == 2
    assert "line 2: invalid TOML: duplicate table [metadata.options]" in refused.err


def test_the_configuration_is_named_before_or_behind_the_command(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment variable has lower priority; no setting outlasts the command."""
    found: list[str | None] = []

    @click.command()
    @config_option
    def show(config: Path | None) -> None:
        found.append(None if config is None else config.name)

    plugins = (bringing("zz-show", lambda: show),)
    for arguments in (("zz-show",), ("--config", "a", "zz-show"), ("--config", "a", "zz-show", "--config", "b")):
        for variable in (None, "v"):
            if variable:
                monkeypatch.setenv("TXNFRAMEWORK_CONFIG", variable)
            else:
                monkeypatch.delenv("TXNFRAMEWORK_CONFIG", raising=False)
            assert invoke(*arguments, plugins=plugins).status == 0
            assert os.environ.get("TXNFRAMEWORK_CONFIG") == variable
    assert found == [None, "v", "a", "a", "b", "b"]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("x = 1\n")
    monkeypatch.setenv("TXNFRAMEWORK_CONFIG", str(wrong))
    assert "wrong.toml: unknown key 'x'" in invoke("check").err


def test_error_at_run_time_is_one_sentence_and_status_1(invoke: Any) -> None:
    """Errors that are not the user's fault have another status."""
    result = invoke("zz-fail", plugins=(failing(Unavailable("the store\nis away")),))
    assert (result.status, result.out, result.err) == (
        1,
        "",
        "Error: the store is away (txnframework explain TXN-400)\n",
    )


def test_traceback_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """With TXNFRAMEWORK_TRACEBACK=1, the whole traceback is printed."""
    monkeypatch.setenv("TXNFRAMEWORK_TRACEBACK", "1")
    with pytest.raises(TxnFrameworkError, match="away"):
        run(["zz-fail"], [failing(Unavailable("away"))])


def test_defect_is_not_hidden() -> None:
    """An unexpected exception keeps its traceback, which a report needs."""
    with pytest.raises(ZeroDivisionError):
        run(["zz-fail"], [failing(ZeroDivisionError())])


def test_interrupt_has_its_own_status(invoke: Any) -> None:
    """The status of Control-C differs from those of success and failure."""

    @click.command()
    def wait() -> None:
        raise KeyboardInterrupt

    result = invoke("zz-wait", plugins=(bringing("zz-wait", lambda: wait),))
    assert result.status == 130
    assert "Interrupted." in result.err


class _Interrupting(MetaPathFinder):
    """Interrupts the import of the program, as Ctrl-C does in the first second of a command."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "txnframework.cli._app":
            raise KeyboardInterrupt


def test_an_interrupt_before_the_command_runs_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C during the imports prints no traceback."""
    monkeypatch.delitem(sys.modules, "txnframework.cli._app")
    monkeypatch.setattr(sys, "meta_path", [_Interrupting(), *sys.meta_path])
    assert main(["--help"]) == 130
    assert capsys.readouterr() == ("", "Interrupted.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file here is always full")
def test_output_that_cannot_be_written_is_said() -> None:
    """A full disk is reported in one sentence, and writing is not retried at exit."""
    command = [sys.executable, "-m", "txnframework", "plugins", "--output", "json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write the output: No space left on device\n"


def test_without_click_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The console script exists even without the extra."""
    monkeypatch.delitem(sys.modules, "txnframework.cli._app")
    monkeypatch.setitem(sys.modules, "click", None)
    assert main(["--help"]) == 2
    assert capsys.readouterr().err == (
        "Error: the command line needs click, which is not installed: pip install 'txnframework[cli]'\n"
    )


def test_as_a_module() -> None:
    """`python -m txnframework` is the same program, with the same exit status."""
    command = [sys.executable, "-m", "txnframework", "no-such-command"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert "No such command 'no-such-command'" in done.stderr
    assert "Traceback" not in done.stderr
