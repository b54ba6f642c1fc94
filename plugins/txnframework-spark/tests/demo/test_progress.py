"""What is shown while the demo works."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from txnframework_spark.demo.report import StepDisplay


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def shown(screen: Console) -> str:
    file = screen.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_without_a_terminal_each_finished_step_is_one_line() -> None:
    """So that a log can be read; what goes on inside of a step is left out."""
    screen = console(terminal=False)
    with StepDisplay(screen, ["load", "start 1"]) as progress:
        progress.begin()
        progress.end("3 rows")
        progress.begin("starting Spark")
        progress.note("batch 1 done")
        progress.end("missed", ok=False)
    first, second = shown(screen).splitlines()
    assert first.startswith("[1/2] done: load - 3 rows (")
    assert second.startswith("[2/2] FAILED: start 1 - missed (")


def test_after_a_failure_the_steps_between_are_left_out() -> None:
    """What is judged at the end is judged all the same."""
    screen = console(terminal=False)
    with StepDisplay(screen, ["load", "start 1", "compare"]) as progress:
        progress.begin()
        progress.end("no store", ok=False)
        progress.begin_last()
        progress.end("nothing there", ok=False)
    assert [line[:20] for line in shown(screen).splitlines()] == ["[1/3] FAILED: load -", "[3/3] FAILED: compar"]


def test_on_a_terminal_every_step_is_listed_from_the_beginning() -> None:
    """Those to come, the one at work, and at the end what came of each."""
    screen = console(terminal=True)
    with StepDisplay(screen, ["load", "start 1"]) as progress:
        progress.begin()
        progress.end("3 rows")
        progress.begin("starting Spark")
        progress.end("killed")
    text = shown(screen)
    assert "load - 3 rows" in text
    assert "start 1 - killed" in text


@pytest.mark.parametrize(("error", "word"), [(KeyboardInterrupt(), "interrupted"), (ValueError("x"), "failed")])
def test_an_exception_ends_the_step_that_it_came_from(error: BaseException, word: str) -> None:
    """And passes on."""
    screen = console(terminal=False)

    def work() -> None:
        with StepDisplay(screen, ["load"]) as progress:
            progress.begin()
            raise error

    with pytest.raises(type(error)):
        work()
    assert f"FAILED: load - {word}" in shown(screen)
