"""The suites in a run of pytest, as the author of a plugin sees them."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

AUTO = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
HEAD = """
import pytest
from txnframework.testing import MetadataStoreSuite
from txnframework_memory.testing import MemoryMetadataHarness
"""


def run(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    """Run pytest on a module, with the plugin even where the distribution is not installed."""
    pytester.makepyfile(HEAD + source)
    installed = any(one.value == "txnframework.testing.pytest_plugin" for one in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "txnframework.testing.pytest_plugin")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *plugin, *arguments)


@pytest.mark.parametrize("options", [(), ("-n", "2"), AUTO], ids=["one process", "workers", "beside pytest-asyncio"])
def test_suite_runs_and_says_what_is_promised(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    """A suite needs only a harness; a skip names the missing capability, and the run ends with a summary."""
    if "-n" in options:
        pytest.importorskip("xdist")
    result = run(
        pytester,
        """
class TestStore(MetadataStoreSuite):
    harness = MemoryMetadataHarness
""",
        "-rs",
        *options,
    )
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 80
    assert "failed" not in outcomes
    result.stdout.fnmatch_lines(
        [
            "*TestStore (MemoryMetadataHarness)*",
            "*declared: CoCommitting, Crashing, Disconnecting, ICoCommitStore, ICopyableMetadataStore, "
            "INotifyingStore*reach STORE*",
            "*not declared: Expiring, IDurableStore, ISharedStore*",
            "*known deviations: none*",
            "*not declared by MemoryMetadataHarness: IDurableStore*",
        ]
    )


@pytest.mark.parametrize(
    ("selected", "outcomes", "said"),
    [
        ("test_put_any", {"xfailed": 1}, "*known deviations: *test_put_any: versions start over*"),
        ("test_put_any or test_get_absent", {"xfailed": 1, "failed": 1}, "*TestStore (*): not certified, 1 failed"),
    ],
)
def test_known_deviation_is_named(
    pytester: pytest.Pytester, selected: str, outcomes: dict[str, int], said: str
) -> None:
    """
    An override that says why is run as expected to fail, and is listed; one that passes fails the run.

    A run that failed certifies nothing.
    """
    result = run(
        pytester,
        """
class TestStore(MetadataStoreSuite):
    harness = MemoryMetadataHarness

    @pytest.mark.xfail(strict=True, reason="versions start over")
    async def test_put_any(self):
        raise AssertionError

    @pytest.mark.xfail(strict=True, reason="no longer true")
    async def test_get_absent(self):
        pass
""",
        "-k",
        selected,
    )
    result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines([said])
    assert ("known deviations" in result.stdout.str()) == ("failed" not in outcomes)


def test_override_without_a_reason_is_refused(pytester: pytest.Pytester) -> None:
    """A test of a suite cannot be replaced quietly."""
    result = run(
        pytester,
        """
class TestStore(MetadataStoreSuite):
    harness = MemoryMetadataHarness

    async def test_closed(self):
        pass
""",
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*TestStore.test_closed overrides a test of the suite*"])


def test_failures_are_explained(pytester: pytest.Pytester) -> None:
    """A failing assert of a suite shows values and the rule, and an author's own coroutine test may use fixtures."""
    result = run(
        pytester,
        """
class Wrong(MemoryMetadataHarness):
    pass


class TestStore(MetadataStoreSuite):
    harness = Wrong

    async def test_own(self, tmp_path):
        '''What was created is read.'''
        assert tmp_path.is_dir()
        async with self.data.open() as store:
            from txnframework.testing._suites._metadata._case import create, value_of
            await create(store, "/a", b"one")
            assert await value_of(store, "/a") == b"two"
""",
        "-k",
        "test_own",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*b'one'*b'two'*", "*- rule of the role -*", "What was created is read."])


def test_other_coroutine_tests_are_left_alone(pytester: pytest.Pytester) -> None:
    """A coroutine test outside the suites is not run by this plugin."""
    result = run(
        pytester,
        """
async def test_elsewhere():
    pass
""",
    )
    assert result.parseoutcomes().get("passed", 0) == 0


def test_a_wait_that_ends_in_vain_says_so(pytester: pytest.Pytester) -> None:
    """The failure names the call that did not return and its line, and shows the test without the suite's frames."""
    result = run(
        pytester,
        """
class Deaf(MemoryMetadataHarness):
    patience_s = 0.2

    def open(self):
        self.space.records.watches.notify = lambda changes: None
        return super().open()

class TestStore(MetadataStoreSuite):
    harness = Deaf
""",
        "-k",
        "test_released",
    )
    assert result.parseoutcomes()["failed"] == 1
    text = result.stdout.str()
    waits = "AssertionError: RecordWatch.changed did not return within 0.2 s; it waits in Watch.changed (_link.py:"
    assert waits in text
    assert "await self.soon(watch.changed())" in text
    for hidden in ("asyncio.timeout", "task.result()", "await asyncio.wait("):
        assert hidden not in text
