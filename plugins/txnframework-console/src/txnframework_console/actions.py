"""The actions of the console: what each one asks, what it says before, and the call that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Protocol
from urllib.parse import urlencode

from txnframework.broker import Start
from txnframework.client import Client
from txnframework.errors import InvalidInput, excerpt
from txnframework.model.names import TopicName

Fields = Mapping[str, str]
SEGMENT_DIGITS_MAX = 18
"""Longer numbers are no segment ids; Python does not even read those of thousands of digits."""


@dataclass(frozen=True, slots=True)
class Target:
    """The choices of one field of a confirmation: its name, its label, and an example or a fixed list."""

    name: str
    label: str
    help: str


class Action(Protocol):
    """An action on one object, which the fields of a form name."""

    title: ClassVar[str]
    button: ClassVar[str]
    targets: ClassVar[tuple[Target, ...]]

    @property
    def subject(self) -> str:
        """What is changed."""

    @property
    def consequence(self) -> str:
        """What happens, for the person who confirms."""

    @property
    def back(self) -> str:
        """The path of the page to which the browser returns."""

    @property
    def changes(self) -> str:
        """The topic that is to be read again afterwards; empty: none."""

    async def run(self, client: Client) -> str:
        """Carry the action out by the client's public API, and return what was done in one sentence."""


@dataclass(frozen=True, slots=True)
class AbortAction:
    """Abort an open transaction."""

    id: str
    title: ClassVar[str] = "Abort transaction"
    button: ClassVar[str] = "Abort this transaction"
    targets: ClassVar[tuple[Target, ...]] = ()
    consequence: ClassVar[str] = (
        "Its messages never become visible, and the messages that it acknowledged are delivered again. If its process"
        " is still running, that process gets an error. An abort cannot be undone."
    )

    @property
    def subject(self) -> str:
        """The id of the transaction."""
        return self.id

    @property
    def changes(self) -> str:
        """No topic: its messages become readable when they are settled."""
        return ""

    @property
    def back(self) -> str:
        """The page of the transaction."""
        return f"/transaction?{urlencode({'id': self.id})}"

    async def run(self, client: Client) -> str:
        """Abort it, as an operator."""
        await client.abort(self.id, operator=True)
        return "The transaction is aborted."


@dataclass(frozen=True, slots=True)
class SettleAction:
    """Settle an ended transaction."""

    id: str
    title: ClassVar[str] = "Settle transaction"
    button: ClassVar[str] = "Settle now"
    targets: ClassVar[tuple[Target, ...]] = ()
    consequence: ClassVar[str] = (
        "The outcome, which is decided already, takes effect at every participant now. Processes that sweep do the same"
        " in the background. Settling again changes nothing."
    )

    @property
    def subject(self) -> str:
        """The id of the transaction."""
        return self.id

    @property
    def changes(self) -> str:
        """No topic: its messages become readable when they are settled."""
        return ""

    @property
    def back(self) -> str:
        """The page of the transaction."""
        return f"/transaction?{urlencode({'id': self.id})}"

    async def run(self, client: Client) -> str:
        """Settle it."""
        left = await client.settle(self.id)
        if left:
            operations = "1 operation has" if left == 1 else f"{left} operations have"
            return f"{operations} not taken effect yet; processes that sweep try again."
        return "The transaction has taken effect everywhere."


@dataclass(frozen=True, slots=True)
class SplitAction:
    """Split a segment of a topic."""

    topic: str
    segment: str
    title: ClassVar[str] = "Split segment"
    button: ClassVar[str] = "Split this segment"
    targets: ClassVar[tuple[Target, ...]] = ()
    consequence: ClassVar[str] = (
        "The segment is sealed, and two children divide its hash range. Its messages stay in it, and consumers read"
        " them before those of the children. Open transactions are unaffected. A split is undone only by a merge."
    )

    @property
    def subject(self) -> str:
        """The segment and its topic."""
        return f"segment {self.segment} of {self.topic}"

    @property
    def changes(self) -> str:
        """The topic."""
        return self.topic

    @property
    def back(self) -> str:
        """The page of the topic."""
        return f"/topic?{urlencode({'name': self.topic})}"

    async def run(self, client: Client) -> str:
        """Split it in the middle of its hash range."""
        if not (self.segment.isascii() and self.segment.isdecimal() and len(self.segment) <= SEGMENT_DIGITS_MAX):
            raise InvalidInput(f"{excerpt(self.segment)} is no segment id")
        low, high = await client.split(TopicName.parse(self.topic), int(self.segment))
        return f"Segment {self.segment} is split into {low} and {high}."


@dataclass(frozen=True, slots=True)
class SeekAction:
    """Move a subscription."""

    topic: str
    name: str
    to: str = ""
    title: ClassVar[str] = "Move subscription"
    button: ClassVar[str] = "Move this subscription"
    targets: ClassVar[tuple[Target, ...]] = (
        Target("to", "New position", "earliest, latest, or a time such as 2026-01-31T12:00:00Z"),
    )
    consequence: ClassVar[str] = (
        "Its consumers continue at the new position at once. Earlier acknowledgments, also those of open transactions,"
        " lose their effect: moving back delivers messages again, and moving forward skips messages."
    )

    @property
    def subject(self) -> str:
        """The subscription and its topic."""
        return f"subscription {self.name} of {self.topic}"

    @property
    def changes(self) -> str:
        """The topic."""
        return self.topic

    @property
    def back(self) -> str:
        """The page of the subscription."""
        return f"/subscription?{urlencode({'topic': self.topic, 'name': self.name})}"

    async def run(self, client: Client) -> str:
        """Move it to the position that the form names."""
        await client.seek(TopicName.parse(self.topic), self.name, seek_target(self.to))
        return "The subscription is moved."


def seek_target(text: str) -> int | Start:
    """Return where to seek: an end of the topic, or a time in ms since 1970; a time without a zone is in UTC."""
    given = text.strip()
    if given == "earliest":
        return "earliest"
    if given == "latest":
        return "latest"
    try:
        at = datetime.fromisoformat(given)
    except ValueError as error:
        raise InvalidInput(
            f"{excerpt(given)} is no position: write earliest, latest, or a time such as 2026-01-31T12:00:00Z"
        ) from error
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def action_of(kind: str, fields: Fields, form: Fields) -> Action:
    """
    Return the action that a path, its query and the fields of its form name.

    KeyError: there is none, or a field of the query is missing.
    """
    if kind == "abort":
        return AbortAction(fields["id"])
    if kind == "settle":
        return SettleAction(fields["id"])
    if kind == "split":
        return SplitAction(fields["topic"], fields["segment"])
    if kind == "seek":
        return SeekAction(fields["topic"], fields["name"], form.get("to", ""))
    raise KeyError(kind)
