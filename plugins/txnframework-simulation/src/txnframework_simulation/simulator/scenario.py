"""Scenarios: the workload and the faults of a run, from TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from txnframework.config import Config, KeyPath, decode, load_config
from txnframework.environment import Environment
from txnframework.errors import ConfigurationError, InvalidInput, UnknownPlugin
from txnframework_simulation.simulator.faults import FaultRates
from txnframework_simulation.simulator.machines import Space, registry
from txnframework_simulation.workloads import WORKLOADS, Workload

SUFFIX = ".toml"
DEFAULT_SPACE = "txnframework_memory.space:MemorySpace"
"""The default stores of a simulation."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a scenario file."""

    about: str = ""
    workload: Annotated[str, Meta(description="A built-in workload, or module:name of another one.")]
    hosts: Annotated[int, Meta(ge=1, le=20, description="Number of hosts, each a simulated process.")] = 3
    actors: Annotated[int, Meta(ge=1, le=20, description="Number of actors of each host.")] = 2
    operations: Annotated[int, Meta(ge=1, description="Minimum number of client operations of a run.")] = 60
    settle_ms: Annotated[
        int, Meta(ge=0, description="Time without faults after which all operations have taken effect.")
    ] = 60_000
    deployments: Annotated[
        int, Meta(ge=1, le=5, description="Number of deployments; the hosts are processes of the first one.")
    ] = 1
    space: Annotated[str, Meta(description="module:name of the class of the stores.")] = DEFAULT_SPACE
    options: dict[str, object] = {}
    faults: FaultRates = FaultRates()
    host: Annotated[dict[str, object], Meta(description="Configuration of each host, without its stores.")] = {}
    name: str = ""

    def make_workload(self) -> Workload[Any]:
        """Create the workload with its options."""
        kind = WORKLOADS.get(self.workload) or _named(self.workload)
        if kind is None:
            raise InvalidInput(
                f"unknown workload {self.workload!r}; use {', '.join(sorted(WORKLOADS))}, or module:name of another one"
            )
        made: Workload[Any] = kind(decode(self.options, kind.options_type, KeyPath("options")))
        return made

    def make_space(self, environment: Environment) -> Space:
        """Create empty stores."""
        try:
            made: Space = _imported(self.space)(environment)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidInput(f"cannot create the stores {self.space!r} of the scenario: {error}") from error
        return made

    def config(self) -> Config:
        """Return the configuration of each host."""
        return load_config(self.host)


def scenario_names() -> tuple[str, ...]:
    """Return the names of the built-in scenarios, sorted."""
    return tuple(sorted(one.name.removesuffix(SUFFIX) for one in _shipped().iterdir() if one.name.endswith(SUFFIX)))


def load_scenario(name: str) -> Scenario:
    """
    Return the scenario of this name, or the one in a file.

    :raises InvalidInput: the scenario is unknown, or its file is invalid.
    """
    if name.endswith(SUFFIX):
        path = Path(name)
        if not path.exists():
            raise InvalidInput(f"{name}: file not found")
        return parse_scenario(path.read_text(encoding="utf-8"), path.name.removesuffix(SUFFIX), name)
    if name not in scenario_names():
        raise InvalidInput(
            f"unknown scenario {name!r}; use {', '.join(scenario_names())}, or a file that ends in {SUFFIX}"
        )
    return parse_scenario((_shipped() / f"{name}{SUFFIX}").read_text(encoding="utf-8"), name)


def parse_scenario(text: str, name: str, file: str | None = None) -> Scenario:
    """
    Return the scenario that a TOML text describes.

    :raises InvalidInput: it is not TOML, or a value is invalid; the error names the file and the key.
    """
    place = KeyPath(file=file or name)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise place.error(f"not valid TOML: {error}") from error
    scenario = msgspec.structs.replace(decode(table, Scenario, place), name=name)
    with _in(place):
        _require_types(scenario.make_workload())
    with _in(place / "host"):
        scenario.config()
    return scenario


@contextmanager
def _in(place: KeyPath) -> Iterator[None]:
    """Add the file and the key to an error."""
    try:
        yield
    except ConfigurationError as error:
        path = ".".join(part for part in (place.path, error.path) if part)
        raise ConfigurationError(path, error.reason, place.file) from error
    except InvalidInput as error:
        raise place.error(str(error)) from error


def _require_types(workload: Workload[Any]) -> None:
    """Reject an unknown subscription type; if only its plugin is missing, opening a host reports it."""
    for path, name in workload.types.items():
        try:
            registry().dispatcher(name)
        except UnknownPlugin as error:
            if error.brought_by is None:
                raise ConfigurationError(f"options.{path}", str(error)) from error


def _named(name: str) -> type[Workload[Any]] | None:
    """Return the workload in a module, or None if ``name`` is not ``module:name``."""
    try:
        return _imported(name) if ":" in name else None
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"cannot load the workload {name!r} of the scenario: {error}") from error


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _shipped() -> Any:
    return files("txnframework_simulation.simulator") / "scenarios"
