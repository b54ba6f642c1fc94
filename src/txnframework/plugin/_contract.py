"""
Verification that a class or object keeps the contract of a role, as far as it shows without a call.

zope's own verification checks names and the number of positional parameters. It misses the usual mistakes: a method
that is not ``async``, a parameter with another name, a keyword-only parameter.

An interface declares its exceptions with tagged values. ``plain_methods``: its methods are plain functions.
``class_attributes``: attributes, by name, that the class itself must have, and their types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from zope.interface import Interface, implementedBy, providedBy
from zope.interface.exceptions import Invalid
from zope.interface.interface import InterfaceClass, Method
from zope.interface.verify import verifyClass, verifyObject

from txnframework.errors import PluginContractError
from txnframework.plugin._errors import Origin
from txnframework.plugin._providers import Provider

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def verify_provider(
    interface: Any, candidate: object, origin: Origin | None = None, verified: type | None = None
) -> None:
    """
    Raise PluginContractError unless ``candidate`` keeps the contract of ``interface`` (such as IMetadataStore).

    ``candidate`` is a Provider (its class is verified), a class, or an object. All attributes are verified only for an
    object: a class may set most of them in its constructor. Every declared sub-interface of ``interface`` (a
    capability) is verified as well. The error names ``origin``.

    ``verified``: a class that keeps the contract. Of an object of this class, only what the class does not have is
    verified, which takes a fraction of the time.
    """
    if isinstance(candidate, Provider):
        candidate = candidate.implementation
    is_class = isinstance(candidate, type)
    role: InterfaceClass = interface
    kept = role.implementedBy(candidate) if is_class else role.providedBy(candidate)
    if not kept:
        name = candidate.__name__ if isinstance(candidate, type) else type(candidate).__name__
        raise _broken(origin, role, None, f"{name} does not declare @implementer({role.__name__})")
    for promised in declared_interfaces(candidate):
        if promised.extends(role, strict=False):
            if type(candidate) is verified and promised.implementedBy(verified):
                _verify_own(promised, candidate, origin)
            else:
                _verify_interface(promised, candidate, origin)


def declared_interfaces(candidate: object) -> tuple[InterfaceClass, ...]:
    """Return every interface that a class implements or an object provides, inherited ones included."""
    declared: Any = implementedBy if isinstance(candidate, type) else providedBy
    return tuple(one for one in declared(candidate).flattened() if one is not Interface)


def _verify_own(role: InterfaceClass, candidate: object, origin: Origin | None) -> None:
    """Verify the attributes of an object whose class is verified, unless the object replaces a method of its class."""
    own = getattr(candidate, "__dict__", {})
    for name, description in role.namesAndDescriptions(all=True):
        if isinstance(description, Method):
            if name in own:
                return _verify_interface(role, candidate, origin)
        elif not hasattr(candidate, name):
            raise _broken(origin, role, name, "the attribute is missing")
    return None


def _verify_interface(role: InterfaceClass, candidate: object, origin: Origin | None) -> None:
    of_class: dict[str, type] = role.queryTaggedValue("class_attributes", {})
    plain: bool = role.queryTaggedValue("plain_methods", False)
    for name, description in sorted(role.namesAndDescriptions(all=True)):
        if isinstance(description, Method):
            reason = _method_problem(description, candidate, name, plain)
        elif name in of_class:
            reason = _class_attribute_problem(candidate, name, of_class[name])
        elif not isinstance(candidate, type) and not hasattr(candidate, name):
            reason = "the attribute is missing"
        else:
            reason = None
        if reason:
            raise _broken(origin, role, name, reason)
    try:  # the rest, by zope's own rules
        if isinstance(candidate, type):
            verifyClass(role, candidate)
        else:
            verifyObject(role, candidate)
    except Invalid as exc:
        raise _broken(origin, role, None, " ".join(str(exc).split())) from exc


def _class_attribute_problem(candidate: object, name: str, kind: type) -> str | None:
    owner = candidate if isinstance(candidate, type) else type(candidate)
    if not hasattr(owner, name):
        return "the attribute is missing; the class has to have it"
    if not isinstance(getattr(owner, name), kind):
        return f"the class has a value of type {type(getattr(owner, name)).__name__} there, not {kind.__name__}"
    return None


def _method_problem(method: Method, candidate: object, name: str, plain: bool) -> str | None:
    found = getattr(candidate, name, None)
    if found is None:
        return "the method is missing"
    if not callable(found):
        return f"it is a value of type {type(found).__name__}, not a method"
    if plain and (inspect.isasyncgenfunction(found) or inspect.iscoroutinefunction(found)):
        return "it is 'async def'; it has to be a plain 'def'"
    if not plain and inspect.isasyncgenfunction(found):
        return "it is an async generator; it has to be an 'async def' that returns a value"
    if not plain and not inspect.iscoroutinefunction(found):
        return "it is not 'async def'"
    wanted = tuple(method.positional)
    parameters = _parameters(found, candidate, name)
    return _parameter_problem(wanted, parameters)


def _parameters(found: Callable[..., object], candidate: object, name: str) -> list[inspect.Parameter]:
    """Return the parameters that a caller of the object sees, without ``self``."""
    parameters = list(inspect.signature(found).parameters.values())
    if isinstance(candidate, type) and inspect.isfunction(inspect.getattr_static(candidate, name)):
        return parameters[1:]
    return parameters


def _parameter_problem(wanted: tuple[str, ...], parameters: list[inspect.Parameter]) -> str | None:
    positional = [one for one in parameters if one.kind in _POSITIONAL]
    takes_any = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    for index, name in enumerate(wanted):
        if index >= len(positional):
            if takes_any:
                return None
            if any(one.name == name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY):
                return f"parameter {name!r} is keyword-only, but roles are called by position"
            return f"parameter {name!r} is missing"
        if positional[index].name != name:
            return f"parameter {index + 1} is named {positional[index].name!r}, the role names it {name!r}"
    for extra in parameters:
        optional = extra.default is not inspect.Parameter.empty
        variable = extra.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if extra.name not in wanted and not optional and not variable:
            return f"parameter {extra.name!r} is not the role's and has no default"
    return None


def _broken(origin: Origin | None, role: InterfaceClass, method: str | None, reason: str) -> PluginContractError:
    distribution = (origin.distribution or str(origin)) if origin else None
    version = origin.version or "" if origin else None
    return PluginContractError(distribution, version, role.__name__, method, reason)
