"""Scenarios: what a run does and what goes wrong in it, from TOML files."""

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
"""The stores of a simulation, unless a scenario names others."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one TOML file says."""

    about: str = ""
    workload: Annotated[str, Meta(description="One that comes with the framework, or module:name of another.")]
    hosts: Annotated[int, Meta(ge=1, le=20, description="How many processes there are.")] = 3
    actors: Annotated[int, Meta(ge=1, le=20, description="How many actors each has.")] = 2
    operations: Annotated[int, Meta(ge=1, description="How many client operations a run has at least.")] = 60
    without_batches: Annotated[
        float, Meta(ge=0, le=1, description="How likely it is that the metadata store has no atomic batches.")
    ] = 0.2
    settle_ms: Annotated[
        int, Meta(ge=0, description="After this, with nothing going wrong any more, everything has taken effect.")
    ] = 60_000
    space: Annotated[str, Meta(description="module:name of what makes the stores from an environment.")] = DEFAULT_SPACE
    options: dict[str, object] = {}
    faults: FaultRates = FaultRates()
    host: Annotated[dict[str, object], Meta(description="The configuration of each process, without its stores.")] = {}
    name: str = ""

    def make_workload(self) -> Workload[Any]:
        """Return the workload with its options."""
        kind = WORKLOADS.get(self.workload) or _named(self.workload)
        if kind is None:
            raise InvalidInput(
                f"there is no workload {self.workload!r}; there are {', '.join(sorted(WORKLOADS))}, and those of others"
                " as module:name"
            )
        made: Workload[Any] = kind(decode(self.options, kind.options_type, KeyPath("options")))
        return made

    def make_space(self, environment: Environment) -> Space:
        """Return new stores."""
        try:
            made: Space = _imported(self.space)(environment)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidInput(f"the stores {self.space!r} of the scenario cannot be made: {error}") from error
        return made

    def config(self) -> Config:
        """Return the configuration of each process."""
        return load_config(self.host)


def scenario_names() -> tuple[str, ...]:
    """Return the names of the scenarios that come with the framework, in order."""
    return tuple(sorted(one.name.removesuffix(SUFFIX) for one in _shipped().iterdir() if one.name.endswith(SUFFIX)))


def load_scenario(name: str) -> Scenario:
    """
    Return the scenario of this name, or the one in a file.

    :raises InvalidInput: there is no such scenario, or its file is wrong.
    """
    if name.endswith(SUFFIX):
        path = Path(name)
        if not path.exists():
            raise InvalidInput(f"the scenario {name} is not there")
        return parse_scenario(path.read_text(encoding="utf-8"), path.name.removesuffix(SUFFIX), name)
    if name not in scenario_names():
        raise InvalidInput(
            f"there is no scenario {name!r}; there are {', '.join(scenario_names())}, and files that end in {SUFFIX}"
        )
    return parse_scenario((_shipped() / f"{name}{SUFFIX}").read_text(encoding="utf-8"), name)


def parse_scenario(text: str, name: str, file: str | None = None) -> Scenario:
    """
    Return the scenario that a TOML text describes.

    :raises InvalidInput: it is not TOML, or something in it cannot be used; the error names file and place.
    """
    place = KeyPath(file=file or name)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise place.error(f"is not TOML: {error}") from error
    scenario = msgspec.structs.replace(decode(table, Scenario, place), name=name)
    with _in(place):
        _require_types(scenario.make_workload())
    with _in(place / "host"):
        scenario.config()
    return scenario


@contextmanager
def _in(place: KeyPath) -> Iterator[None]:
    """Say of what is wrong in which file, and where in it, that is."""
    try:
        yield
    except ConfigurationError as error:
        path = ".".join(part for part in (place.path, error.path) if part)
        raise ConfigurationError(path, error.reason, place.file) from error
    except InvalidInput as error:
        raise place.error(str(error)) from error


def _require_types(workload: Workload[Any]) -> None:
    """Refuse a subscription type that nobody has; of one whose plugin is missing, opening a host tells."""
    for path, name in workload.types.items():
        try:
            registry().dispatcher(name)
        except UnknownPlugin as error:
            if error.brought_by is None:
                raise ConfigurationError(f"options.{path}", str(error)) from error


def _named(name: str) -> type[Workload[Any]] | None:
    """Return the workload that stands in a module; None: it is not there."""
    try:
        return _imported(name) if ":" in name else None
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"the workload {name!r} of the scenario cannot be loaded: {error}") from error


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _shipped() -> Any:
    return files("txnframework_simulation.simulator") / "scenarios"
