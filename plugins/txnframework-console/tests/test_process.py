"""The console as a process: its address, its token, and its end by SIGTERM while a browser watches."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from txnframework.cli import main
from txnframework_console.texts import visible

PATIENCE_S = 60
MEMORY = '[metadata]\nurl = "memory://user:sesame@console"\n[ledger]\nurl = "memory://user:sesame@console"\n'


def test_it_ends_at_sigterm(tmp_path: Path) -> None:
    """A browser that watches does not keep it. The token is printed once, and no other line has it or a password."""
    config = tmp_path / "t.toml"
    config.write_text(MEMORY)
    options = ["console", "--allow-changes", "--listen", "127.0.0.1:0", "--config", str(config)]
    with subprocess.Popen(
        [sys.executable, "-m", "txnframework", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address, token = (_after(process.stdout.readline()) for _ in range(2))
            with httpx.Client(base_url=address.split(" ")[0], timeout=PATIENCE_S) as browser:
                page = browser.get("/processes").text
                assert token not in page
                assert "sesame" not in page
                missing = f"/act/abort?id={'0' * 32}"
                assert browser.post(missing, data={"token": token}).status_code == 404
                assert browser.get(f"{missing}&token={token}").status_code == 200, "a token in an address does nothing"
                with browser.stream("GET", "/live/topics") as live:
                    lines = live.iter_lines()
                    assert next(lines) == "retry: 2000"
                    process.send_signal(signal.SIGTERM)
                    assert all("sesame" not in line for line in lines), "the stream ends"
            said, logged = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (token in said + logged, "sesame" in said + logged) == (False, False)


def _after(line: str) -> str:
    """Return what a line says after its name."""
    return line.partition(": ")[2].strip()


def test_it_listens_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless another address is given."""
    assert main(["console", "--help"]) == 0
    assert re.search(r"default:\s+127\.0\.0\.1:8470", capsys.readouterr().out)


@pytest.mark.parametrize("hidden", ["\x00", "\x1b[31m", "\u202e", "\u2028", "\u200b", "\x7f", "\udc80"])
def test_control_characters_are_visible(hidden: str) -> None:
    """In pages and in the terminal: none of them can hide, colour or turn around the text beside it."""
    assert visible(f"a{hidden}b") == f"a\\u{ord(hidden[0]):04x}{hidden[1:]}b"
