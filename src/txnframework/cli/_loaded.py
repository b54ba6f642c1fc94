"""What the commands are given to work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from txnframework.errors import PluginError
from txnframework.plugin import PluginRegistry, RegisteredCommand, load_commands, load_plugins

Commands = Mapping[str, RegisteredCommand]


class Loaded:
    """
    The plugins of this run, and the errors of those that cannot be used; click's context object.

    They are loaded when something asks for them, and their commands apart from all else: a help text needs no store. A
    broken plugin must not take the command line away, so asking raises nothing.

    :param extra: plugins beside those that are installed.
    :param misplaced: says what is wrong with commands that nobody can type.
    """

    def __init__(self, extra: Sequence[object], misplaced: Callable[[Commands], Iterable[PluginError]]) -> None:
        self._extra = extra
        self._misplaced = misplaced

    @property
    def commands(self) -> Commands:
        """The commands that plugins bring; none is imported."""
        return self._listed[0]

    @property
    def errors_of_commands(self) -> Sequence[PluginError]:
        """Which plugins cannot even be asked for commands, and why."""
        return self._listed[1]

    @property
    def registry(self) -> PluginRegistry:
        """All that plugins provide."""
        return self._whole[0]

    @property
    def errors(self) -> Sequence[PluginError]:
        """Which plugins cannot be used, and why."""
        return self._whole[1]

    @cached_property
    def _listed(self) -> tuple[Commands, list[PluginError]]:
        errors: list[PluginError] = []
        return load_commands(self._extra, on_error=errors.append), errors

    @cached_property
    def _whole(self) -> tuple[PluginRegistry, list[PluginError]]:
        errors: list[PluginError] = []
        registry = load_plugins(self._extra, on_error=errors.append)
        return registry, [*errors, *self._misplaced(registry.commands())]
