"""Pulsar's own client for Java, with transactions; run where TXN_PULSAR_JARS names a folder with its jars."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gateway_world import World

SOURCE = Path(__file__).parent / "java" / "Behaviours.java"
PATIENCE_S = 240


def test_behaviours_of_the_client_for_java(world: World, tmp_path: Path) -> None:
    jars = str(Path(os.environ["TXN_PULSAR_JARS"]) / "*")
    subprocess.run(["javac", "-cp", jars, "-d", str(tmp_path), str(SOURCE)], check=True, timeout=PATIENCE_S)
    java = ["java", "-cp", os.pathsep.join((jars, str(tmp_path))), "Behaviours", world.url]
    done = subprocess.run(java, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
