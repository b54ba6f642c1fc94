"""The module of the protocol's messages is what the compiler makes of their definition."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import txnframework_pulsar.wire

WIRE = Path(txnframework_pulsar.wire.__file__).parent


@pytest.mark.parametrize("name", ["messages_pb2.py", "messages_pb2.pyi"])
def test_the_generated_module_is_up_to_date(tmp_path: Path, name: str) -> None:
    """If it is not: ``tox run -e pulsar-messages``."""
    options = [f"-I{WIRE}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "messages.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], check=True)
    assert (tmp_path / name).read_text() == (WIRE / name).read_text()
