"""Creation of Spark sessions in which this format works.

The parts of a session: a Java that Spark can run on, a Spark home, temporary folders, Python workers and settings.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from txnframework_spark.errors import JavaUnusable
from txnframework_spark.workers import INTERPRETER_VARIABLES, WORKER_SETTINGS, worker_nursery, worker_sockets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_VERSION_MIN = 17
_JAVA_HINT = f"install a Java of version {JAVA_VERSION_MIN} or newer, or set JAVA_HOME to one"


def check_java(timeout_ms: int = 20_000) -> int:
    """Return the major version of the Java that Spark would start, or raise JavaUnusable."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if command is None:
        raise JavaUnusable(f"Spark needs Java and none is installed: {_JAVA_HINT}")
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark itself would start
            [command, "-version"], capture_output=True, text=True, timeout=timeout_ms / 1000, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        where = f"JAVA_HOME={home}" if home else command
        raise JavaUnusable(f"Spark needs Java, and the one at {where} cannot be run: {_JAVA_HINT}") from error
    version = java_version(done.stderr + done.stdout)
    if version is None:
        raise JavaUnusable(f"Spark needs Java, and {command} does not print its version: {_JAVA_HINT}")
    if version < JAVA_VERSION_MIN:
        raise JavaUnusable(f"Spark needs Java {JAVA_VERSION_MIN} or newer and found {version}: {_JAVA_HINT}", version)
    return version


def java_version(text: str) -> int | None:
    """Return the major version in the output of ``java -version``; None if it contains none."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major = int(found[1])
    # Up to Java 8, versions had the form 1.8.
    return int(found[2]) if major == 1 and found[2] else major


HOME_VARIABLE: Final = "SPARK_HOME"
_HOME_FOLDERS = ("bin", "jars")


def make_spark_home(directory: Path) -> Path:
    """Create ``directory`` as a home with only the files that the JVM needs to start; return it."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    directory.mkdir()
    for name in _HOME_FOLDERS:
        (directory / name).symlink_to(installed / name, target_is_directory=True)
    return directory


@contextlib.contextmanager
def use_spark_home(folder: Path) -> Iterator[None]:
    """Make a JVM that is started in the block use such a home in ``folder``, which must exist as long as the JVM runs.

    If SPARK_HOME is set, it is kept: the user has chosen a home with its own settings and jars.
    """
    if HOME_VARIABLE in os.environ:
        yield
        return
    os.environ[HOME_VARIABLE] = str(make_spark_home(folder / "home"))
    try:
        yield
    finally:
        del os.environ[HOME_VARIABLE]


_HELD: Final = "held"
"""A file in each folder that the process keeps locked while it lives; a folder whose file is unlocked is a leftover."""


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """
    Provide a folder that only this user can read, and remove it when the block ends.

    First remove folders with this prefix that killed processes of the same user have left.
    """
    _remove_left_behind(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        unnamed = folder / f"{_HELD}.new"
        with unnamed.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            # Locked before it gets its name: a folder without that file is still being created, and is not removed.
            unnamed.rename(folder / _HELD)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_behind(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid() and not _is_held(folder / _HELD):
                shutil.rmtree(folder, ignore_errors=True)


def _is_held(file: Path) -> bool:
    """Return whether a living process has locked the file; OSError if the file does not exist."""
    with file.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


LOCAL_CHECKPOINT: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""
Settings for a checkpoint in a local folder. Without Hadoop's native library, Spark starts two or three programs for
each checkpoint file, to resolve links and set modes. These settings avoid that; the files are the same.
"""


REDACTION: Mapping[str, str] = {
    "spark.redaction.string.regex": (
        r"(?<=[:=])(?i:(?<=://[^\s:@/]{0,255}:)\S*(?=@)|(?<=[?&;](password|passwd|pwd|secret|token)=)[^&;\s,\])}]*)"
    )
}
"""
Settings that hide the passwords of URLs in printed plans: ``explain``, Spark's web pages and its event log. Spark
prints the options of a source there, and by default hides only those whose names look secret.

Spark prints the plan of every micro-batch twice. So the first condition is one character: without it, Java looks back
up to 255 characters from every position, and a micro-batch takes tens of milliseconds longer.
"""


def require_this_interpreter() -> None:
    """Make Spark run its Python workers with this interpreter; call it before the session is created.

    By default Spark runs the ``python3`` on the path, which may lack this distribution and the plugins of the stores.
    """
    for name in INTERPRETER_VARIABLES:
        os.environ[name] = sys.executable


def set_interpreter(local: bool) -> None:
    """Choose the interpreter of Python workers: this one if ``local``, else PYSPARK_PYTHON if it is set."""
    if local:
        require_this_interpreter()
    for name in INTERPRETER_VARIABLES:
        os.environ.setdefault(name, sys.executable)


def is_local(master: str) -> bool:
    """Return whether driver and executors are one process, with one working folder."""
    return master == "local" or master.startswith("local[")


@contextlib.contextmanager
def spark_session(settings: Mapping[str, str], log: Path | None) -> Iterator[SparkSession]:
    """
    Provide a session with these settings, which include ``spark.master``, and stop it when the block ends.

    :param log: the file for the output of Spark and of all processes that it starts; None: standard error.
    :raises JavaUnusable: no usable Java is installed.
    """
    check_java()
    local = is_local(settings["spark.master"])
    set_interpreter(local)
    from pyspark.sql import SparkSession

    with contextlib.ExitStack() as stack:
        ours = {**REDACTION, **WORKER_SETTINGS}
        # The JVM and the processes that it starts inherit the current standard error.
        with standard_error_to(log):
            if local:
                folder = stack.enter_context(scratch_folder("txnframework-spark-"))
                stack.enter_context(use_spark_home(folder))
                stack.enter_context(worker_nursery(folder))
                ours = {**ours, **worker_sockets(folder)}
            builder = SparkSession.builder
            for name, value in {**ours, **settings}.items():
                builder = builder.config(name, value)
            session = builder.getOrCreate()
        try:
            yield session
        except BaseException:
            # Stopping fails if the JVM has died, which may be the cause of this error.
            with contextlib.suppress(Exception):
                session.stop()
            raise
        session.stop()


@contextlib.contextmanager
def standard_error_to(log: Path | None) -> Iterator[None]:
    """Redirect the standard error of processes started in the block to a file; None: no redirection."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
