"""A commented configuration file, generated from the sections, so that the two cannot differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Annotated, Any, get_args, get_origin

import msgspec

from txnframework.config._sections import Config

_WIDTH = 100
_HEAD = (
    "Configuration of txnframework. Each line with '#' and '=' shows a default. To change a setting, remove the '#' "
    "and edit the value. Without a value after '=', the setting has none. 'txnframework check FILE' validates a file."
)


Options = Mapping[str, Mapping[str, type[msgspec.Struct]]]
"""
The options that each installed plugin takes, by the place of their table (``coordinators``, ``metadata.options``).
"""


def render_config(installed: Mapping[str, Iterable[str]] | None = None, options: Options | None = None) -> str:
    """
    Return the default configuration as a commented TOML file that sets nothing but the defaults.

    :param installed: the names that can be used at a path (``metadata.url``, ``domains.segment.buffer``), to be listed
        in its comment.
    :param options: the options of the installed plugins.
    """
    lines = [*_comment(_HEAD), ""]
    lines.extend(_table(Config(), "", installed or {}, options or {}))
    return "\n".join(lines).rstrip() + "\n"


def _table(
    section: msgspec.Struct, path: str, installed: Mapping[str, Iterable[str]], options: Options
) -> Iterator[str]:
    for field in msgspec.structs.fields(section):
        place = f"{path}.{field.encode_name}" if path else field.encode_name
        value = getattr(section, field.name)
        description, sample = _described(field.type)
        if isinstance(value, msgspec.Struct):
            yield from _subtable(value, place, installed, options)
        elif isinstance(value, dict):
            yield from _comment(description)
            known = options.get(place, {})
            if not known:
                yield from (f"# {line}" for line in (sample or f"[{place}{'' if path else '.NAME'}]").splitlines())
                yield ""
            if path and len(known) > 1:
                yield from _comment("Use only the table of the plugin that the URL names.")
            for name, kind in known.items():
                yield f"# [{place}]  # of {name}" if path else f"# [{place}.{name}]"
                yield ""
                yield from _options(kind)
        else:
            yield from _comment(description)
            names = sorted(installed.get(place, ()))
            if names:
                yield from _comment(f"Installed: {', '.join(names)}.")
            yield f"# {field.encode_name} = {_written(value)}"
            yield ""


def _options(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the options of one plugin; an option without a default has no value."""
    for field in msgspec.structs.fields(kind):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        yield from _comment(_described(field.type)[0])
        if isinstance(default, msgspec.Struct):
            for inner in msgspec.structs.fields(default):
                yield from _comment(f"{inner.encode_name}: {_described(inner.type)[0]}")
        yield f"# {field.encode_name} = {'' if default in (None, msgspec.NODEFAULT) else _written(default)}".rstrip()
        yield ""


def _subtable(
    section: msgspec.Struct, place: str, installed: Mapping[str, Iterable[str]], options: Options
) -> Iterator[str]:
    """Yield a table, with a header only if values follow directly: an empty table would have no meaning."""
    values = [getattr(section, field.name) for field in msgspec.structs.fields(section)]
    if not all(isinstance(value, msgspec.Struct) for value in values):
        yield from _comment((type(section).__doc__ or "").strip().replace("``", ""))
        yield f"[{place}]"
    yield from _table(section, place, installed, options)


def _described(annotation: Any) -> tuple[str, str]:
    if get_origin(annotation) is Annotated:
        for meta in get_args(annotation)[1:]:
            if isinstance(meta, msgspec.Meta):
                return meta.description or "", str((meta.extra or {}).get("sample", ""))
    return "", ""


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in wrap(text, _WIDTH))


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, msgspec.Struct):
        inner = (f"{name} = {_written(getattr(value, name))}" for name in value.__struct_fields__)
        return f"{{ {', '.join(inner)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return f'"{value}"'
