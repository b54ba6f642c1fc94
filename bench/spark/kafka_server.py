"""A Kafka of one process (KRaft), and the jars of Kafka and of Spark's connector, through Maven."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SERVER: Final = ("org.apache.kafka:kafka_2.13:4.2.0", "org.apache.kafka:kafka-tools:4.2.0")
CONNECTOR: Final = ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",)
"""The newest version on Maven Central; it runs on the Spark of PySpark 4.3."""

_SPARKS_OWN: Final = ("scala-", "slf4j-", "snappy-", "lz4-", "jsr305", "spark-tags")
"""Jars that are part of Spark; a second copy of another version would be loaded first."""

_POM: Final = """<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>jars</artifactId>
<version>1</version><dependencies>{}</dependencies></project>"""
_DEPENDENCY: Final = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>org.apache.hadoop</groupId><artifactId>*</artifactId></exclusion></exclusions>
</dependency>"""

_PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
_START_WITHIN_S: Final = 120.0
_QUIET: Final = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def fetch_jars(directory: Path, artifacts: tuple[str, ...]) -> list[Path]:
    """Return the jars of these artifacts and of what they need, fetched by ``mvn`` unless they are in ``directory``."""
    if not any(directory.glob("*.jar")):
        if shutil.which("mvn") is None:
            raise SystemExit("this needs Maven: install mvn, and let it reach Maven Central")
        directory.mkdir(parents=True, exist_ok=True)
        wanted = "".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
        (directory / "pom.xml").write_text(_POM.format(wanted), encoding="utf-8")
        fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=."]
        subprocess.run(fetch, cwd=directory, check=True)
    return sorted(directory.glob("*.jar"))


def connector_jars(directory: Path) -> list[Path]:
    """Return the jars for ``spark.jars``."""
    return [jar for jar in fetch_jars(directory, CONNECTOR) if not jar.name.startswith(_SPARKS_OWN)]


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A running Kafka: its address, and the jars of its tools."""

    address: str
    classpath: str

    def create(self, topic: str) -> None:
        """Create a topic, with as many partitions as the server gives by default."""
        asked = ["--bootstrap-server", self.address, "--create", "--topic", topic]
        subprocess.run(_java(self.classpath, "org.apache.kafka.tools.TopicCommand", *asked), check=True, **_QUIET)


@contextmanager
def kafka_server(jars: Path, directory: Path, partitions: int) -> Iterator[KafkaServer]:
    """
    Run a Kafka with its data in ``directory``.

    ``jars``: where its jars are or are put. ``partitions``: how many each topic has.
    """
    classpath = ":".join(map(str, fetch_jars(jars, SERVER)))
    directory.mkdir(parents=True)
    ports = {"broker": _free_port(), "controller": _free_port()}
    properties = directory / "server.properties"
    properties.write_text(_PROPERTIES.format(**ports, data=directory / "data", partitions=partitions), encoding="utf-8")
    identity = uuid.uuid4().hex[:22]
    format_ = _java(classpath, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(properties))
    subprocess.run(format_, check=True, **_QUIET)
    server = subprocess.Popen(_java(classpath, "kafka.Kafka", str(properties)), **_QUIET)
    try:
        _wait_for(server, ports["broker"])
        yield KafkaServer(f"127.0.0.1:{ports['broker']}", classpath)
    finally:
        server.terminate()
        server.wait()


def _java(classpath: str, *arguments: str) -> list[str]:
    return ["java", "-Xmx1g", "-cp", classpath, *arguments]


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise SystemExit("Kafka did not start")
