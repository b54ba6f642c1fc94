"""
What all tests share.

With TXN_REFUSE_SKIPS=1 a skip fails the run unless it names an undeclared capability. With TXN_EAGER_TASKS=1 every
event loop has the task factory ``asyncio.eager_task_factory``, which a program may set (Python 3.12 and later).
"""

from __future__ import annotations

import asyncio
import gc
import os

import pytest

CAPABILITY_NOT_DECLARED = "not declared by"
OBJECTS_BETWEEN_COLLECTIONS = 5_000
"""With the default, 700, a tenth of the processor's time goes into collections: worlds in memory have many objects."""


def pytest_configure() -> None:
    """Let all event loops start tasks eagerly, if this is wanted."""
    if os.environ.get("TXN_EAGER_TASKS") == "1":

        class EagerTasks(asyncio.DefaultEventLoopPolicy):
            def new_event_loop(self) -> asyncio.AbstractEventLoop:
                loop = super().new_event_loop()
                loop.set_task_factory(asyncio.eager_task_factory)
                return loop

        asyncio.set_event_loop_policy(EagerTasks())


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of all collections of garbage: it lives as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn a passing run with refused skips into a failing one: a backend that was skipped has not passed."""
    if exitstatus == pytest.ExitCode.OK and _refused(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which skips were refused."""
    for report in _refused(terminalreporter.config):
        terminalreporter.write_line(f"REFUSED SKIP {report.nodeid}: {_reason(report)}", red=True)


def _refused(config: pytest.Config) -> list[pytest.TestReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("TXN_REFUSE_SKIPS") != "1" or reporter is None:
        return []
    return [report for report in reporter.stats.get("skipped", []) if CAPABILITY_NOT_DECLARED not in _reason(report)]


def _reason(report: pytest.TestReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
