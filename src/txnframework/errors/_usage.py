"""Errors of invalid usage."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.errors._root import TxnFrameworkError, excerpt


class InvalidInput(TxnFrameworkError):
    """
    Input by a person that cannot be used; its text is one sentence that says what to do.

    :known: Nothing was done.
    :retry: never
    :advice: Correct the input; the text says how.
    """

    code = "TXN-100"


class ConfigurationError(InvalidInput):
    """
    The configuration is wrong at ``path`` (such as ``domains.segment.buffer``).

    :known: Nothing was opened.
    :retry: never
    :advice: Correct the setting at ``path``. ``txnframework check FILE`` validates a file, and ``txnframework init``
        writes one with comments.
    """

    code = "TXN-101"

    def __init__(self, path: str, reason: str, file: str | None = None) -> None:
        self.path = path
        self.reason = reason
        self.file = file
        where = f"{file}: {path}" if file and path else file or path
        super().__init__(f"{where}: {reason}" if where else reason)


class InvalidName(InvalidInput):
    """
    ``name`` is not the name of a topic or segment; ``reason`` says why.

    :known: Nothing was done.
    :retry: never
    :advice: Use a name such as ``orders`` or ``topic://tenant/namespace/name``; ``reason`` names the rule that was
        broken.
    """

    code = "TXN-102"

    def __init__(self, name: object, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{excerpt(name)} is not a topic name: {reason}")


class MissingExtra(InvalidInput):
    """
    ``what`` needs a package that is not installed; the extra ``extra`` installs it.

    :known: Nothing was done.
    :retry: never
    :advice: Install the extra ``extra`` with the command in the text, then start the program again.
    """

    code = "TXN-103"

    def __init__(self, what: str, extra: str, package: str) -> None:
        self.what = what
        self.extra = extra
        self.package = package
        super().__init__(f'{what} needs {package}: pip install "txnframework[{extra}]"')


class PluginError(InvalidInput):
    """
    A plugin could not be used; ``distribution`` and ``version`` are the plugin's, if known.

    :known: Nothing was opened.
    :retry: never
    :advice: Read what the plugin reports, then update, repair or remove the distribution. ``txnframework plugins``
        lists all.
    """

    code = "TXN-104"

    def __init__(self, message: str, distribution: str | None = None, version: str | None = None) -> None:
        self.distribution = distribution
        self.version = version
        super().__init__(message)


class UnknownPlugin(PluginError):
    """
    No installed plugin provides ``name`` for ``role``; the distribution ``brought_by`` does, if known.

    :known: Nothing was opened.
    :retry: never
    :advice: Correct the name, or install the distribution ``brought_by``.
    """

    code = "TXN-105"

    def __init__(
        self, role: str, name: str, known: Iterable[str], hint: str = "", brought_by: str | None = None
    ) -> None:
        self.role = role
        self.name = name
        self.known = tuple(sorted(known))
        self.brought_by = brought_by
        installed = ", ".join(self.known) or "none"
        super().__init__(f"no {role} named {name!r} is installed (installed: {installed}){hint}")


class WithoutTransactions(PluginError):
    """
    ``segment`` contains operations of a transaction whose outcome is unknown here; ``reason`` says what is missing.

    :known: Nothing was read from the segment, and nothing was skipped.
    :retry: never
    :advice: Install and configure the plugins of the family that wrote the transaction, in every process that uses the
        topic.
    """

    code = "TXN-106"

    def __init__(self, segment: str, what: str, reason: str) -> None:
        self.segment = segment
        self.reason = reason
        super().__init__(f"{what} cannot be judged here: {segment} is served without transactions, because {reason}")


class PluginContractError(PluginError):
    """
    A plugin's object does not keep the contract of its role; ``method`` says where.

    :known: The object was not used.
    :retry: never
    :advice: Authors: correct ``method`` of ``role``; the conformance suite tests it. Others: report it to the plugin's
        authors.
    """

    code = "TXN-107"

    def __init__(
        self, distribution: str | None, version: str | None, role: str, method: str | None, reason: str
    ) -> None:
        self.role = role
        self.method = method
        whose = f"{distribution} {version}" if distribution else "an object"
        where = f"{role}.{method}" if method else role
        super().__init__(f"{whose} does not keep the contract of {where}: {reason}", distribution, version)


class UnusableServer(InvalidInput):
    """
    The embedded server ``name`` cannot be started.

    :known: No server is running, and its data is removed.
    :retry: never
    :advice: Remove the reason in the text, such as a missing package, or name the URL of a server that runs already.
    """

    code = "TXN-108"

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        super().__init__(f"{name}: {reason}")
