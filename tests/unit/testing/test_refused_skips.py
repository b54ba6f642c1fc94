"""With TXN_REFUSE_SKIPS=1, a skipped test fails the run, in any process of a parallel run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
SKIPPING = {
    "call": "def test_it(): pytest.skip('no server')",
    "module": "pytest.skip('no server', allow_module_level=True)",
    "mark": "@pytest.mark.skip(reason='no server')\ndef test_it(): pass",
    "fixture": "@pytest.fixture\ndef it(): pytest.skip('no server')\n\ndef test_it(it): pass",
}
SPREAD = pytest.mark.parametrize("workers", ["0", "2"])


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, refuse: str, workers: str) -> pytest.RunResult:
    """Run what was written, beside the project's own conftest."""
    pytest.importorskip("xdist")
    pytester.makeconftest((ROOT / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(test_passing="def test_it(): pass")
    monkeypatch.setenv("TXN_REFUSE_SKIPS", refuse)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", workers)


@SPREAD
def test_a_skip_fails_the_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    """Every skip is named and fails the run, in any form; without the variable it does not."""
    pytester.makepyfile(**{f"test_{where}": f"import pytest\n\n{source}\n" for where, source in SKIPPING.items()})
    refused = run(pytester, monkeypatch, "1", workers)
    assert refused.ret == pytest.ExitCode.TESTS_FAILED
    for where in SKIPPING:
        refused.stdout.fnmatch_lines([f"REFUSED SKIP test_{where}.py*no server"])
    assert run(pytester, monkeypatch, "", workers).ret == pytest.ExitCode.OK


@SPREAD
def test_an_undeclared_capability_does_not(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """Tests of undeclared capabilities may be skipped."""
    pytester.makepyfile(test_it="import pytest\n\ndef test_it(): pytest.skip('not declared by It: IThat')\n")
    assert run(pytester, monkeypatch, "1", workers).ret == pytest.ExitCode.OK
