"""Names of topics and of the segments that a scalable topic is made of."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from txnframework.errors import InvalidInput, InvalidName, excerpt

PERSISTENT = "persistent"
TOPIC = "topic"
SEGMENT = "segment"
TOPIC_DOMAINS = (PERSISTENT, TOPIC)
TRANSACTION_DOMAINS = (SEGMENT, PERSISTENT)
"""The domains by which plugins are configured: topics of the domain ``topic`` consist of segments."""
DEFAULT_DOMAIN = TOPIC
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"

INTERNAL_PREFIX = "__"
"""
Prefix of the names that are not for users: topics, all topics of a namespace or tenant with such a name, and ledgers.
"""

HASH_MAX = 0xFFFF
"""Segments divide the hash values from 0 to this one, both included."""

SEGMENT_ID_MAX = 2**63 - 1
ONLY_SEGMENT_ID = 0
"""The id of a persistent topic's only segment."""

_TOPICS_KEPT_MAX = 4_096
"""How many segments' topics are kept: each message that is acknowledged asks for that of its segment."""

NAME_BYTES_MAX = 255
"""
The most bytes of UTF-8 that a new name may have; of a topic, ``tenant/namespace/name`` together.

Every store accepts keys of two such names: escaped, a byte takes three, and PostgreSQL accepts 2,704 bytes in one row
of an index.
"""

KNOWN_NAME_CHARACTERS_MAX = 4_096
"""The most characters of a name in a lookup: releases before NAME_BYTES_MAX made longer names than it allows."""

_TOPIC_FORM = "expected persistent://tenant/namespace/name or topic://tenant/namespace/name"
_SEGMENT_FORM = "expected segment://tenant/namespace/name/<start>-<end>-<segment id>, such as 0000-7fff-1"
# One spelling only: upper case, leading zeros and other scripts' digits would give one segment two names.
_RANGE = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]*)")
# Control characters and line breaks garble logs; lone surrogates have no UTF-8 form, so no store could hold them.
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
# They change the order of the characters around them, so that a name is read as another one.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# They have no form and no width. Joiners are not among them, because words of some languages contain them.
_INVISIBLE = frozenset("\u200b\u2060\ufeff")


def check_known_name(text: object, what: str) -> str:
    """
    Return a name for a lookup; ``what`` is the kind of the name, such as ``subscription name``.

    :raises InvalidInput: no store could hold the name.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a {what} is text, not a {type(text).__name__}")
    if not text:
        raise InvalidInput(f"a {what} is empty")
    if len(text) > KNOWN_NAME_CHARACTERS_MAX:
        raise InvalidInput(f"{what} {excerpt(text)} has {len(text)} characters, and at most {NAME_BYTES_MAX} bytes")
    if fault := _unprintable(text):
        raise InvalidInput(f"{what} {excerpt(text)} {fault}")
    return text


def check_new_name(text: object, what: str) -> str:
    """
    Return a name that is stored for the first time; ``what`` is the kind of the name, such as ``subscription name``.

    It has 1 to NAME_BYTES_MAX bytes of UTF-8, no control characters, and no white space at its ends.

    :raises InvalidInput: the name breaks one of these rules.
    """
    known = check_known_name(text, what)
    if fault := _new_fault(known) or _length_fault(known):
        raise InvalidInput(f"{what} {excerpt(known)} {fault}")
    return known


def check_new_topic(topic: TopicName) -> None:
    """Raise InvalidName unless a topic may be created under this name; the rules are those of ``check_new_name``."""
    for what, part in (("tenant", topic.tenant), ("namespace", topic.namespace), ("name", topic.name)):
        if fault := _new_fault(part):
            raise InvalidName(str(topic), f"its {what} {fault}")
    if fault := _length_fault(f"{topic.tenant}/{topic.namespace}/{topic.name}"):
        raise InvalidName(str(topic), f"it {fault}")


def check_chosen_topic(topic: TopicName) -> None:
    """
    Raise InvalidName unless a person may choose this name for a new topic.

    These rules are in addition to those of ``check_new_topic``. White space inside a name is refused: a shell divides
    such a name in two, and no configuration can name such a namespace. Characters without a form are refused, because
    two names look the same. Earlier releases accepted both, so names that exist remain usable. A name that is derived
    from an existing one, such as that of a dead-letter topic, a migrated topic or a replica, is exempt.
    """
    for what, part in (("tenant", topic.tenant), ("namespace", topic.namespace), ("name", topic.name)):
        if any(one.isspace() for one in part.strip()):
            raise InvalidName(str(topic), f"its {what} contains a space; write '-' or '_' instead")
        if hidden := next((one for one in part if one in _INVISIBLE), None):
            raise InvalidName(str(topic), f"its {what} contains the invisible character U+{ord(hidden):04X}")


def check_namespace(text: object) -> tuple[str, str]:
    """Return the tenant and the namespace of the text ``tenant/namespace``, or raise InvalidInput."""
    tenant, _, namespace = check_known_name(text, "namespace").partition("/")
    if not (tenant and namespace) or "/" in namespace:
        raise InvalidInput(f"{excerpt(text)} is not a namespace: write tenant/namespace, such as public/default")
    return tenant, namespace


def _new_fault(text: str) -> str | None:
    """Return the defect of a part of a name that is stored for the first time, or None."""
    if text != text.strip():
        return "begins or ends with a space; leave it out"
    turning = next((one for one in text if one in _TURNING), None)
    return None if turning is None else f"contains the control character U+{ord(turning):04X}"


def _length_fault(text: str) -> str | None:
    size = len(text.encode())
    return f"has {size} bytes of UTF-8, and at most {NAME_BYTES_MAX} are allowed" if size > NAME_BYTES_MAX else None


def _unprintable(part: str) -> str | None:
    """Return a message about the first control character of a text; None: it has none."""
    # Printable text has none; this test is fast.
    for character in "" if part.isprintable() else part:
        if unicodedata.category(character) in _FORBIDDEN_CATEGORIES:
            return f"contains the control character U+{ord(character):04X}"
    return None


def check_name_part(part: str, what: str, text: str) -> None:
    """
    Accept one part of a name, called ``what``, or raise InvalidName about ``text``, the whole name.

    A part is not empty and contains neither ``/`` nor control characters; everything else is allowed.
    """
    if not part:
        raise InvalidName(text, f"its {what} is empty")
    if "/" in part:
        raise InvalidName(text, f"its {what} contains a slash")
    if fault := _unprintable(part):
        raise InvalidName(text, f"its {what} {fault}")


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic, ``persistent://tenant/namespace/name`` or ``topic://tenant/namespace/name``.

    Every instance is valid: constructing one that could not be parsed back raises InvalidName.
    """

    domain: str
    tenant: str
    namespace: str
    name: str

    def __post_init__(self) -> None:
        text = str(self)
        if self.domain not in TOPIC_DOMAINS:
            raise InvalidName(text, f"its domain {self.domain!r} is not that of a topic; {_TOPIC_FORM}")
        _check_parts(self.tenant, self.namespace, self.name, text)

    def __str__(self) -> str:
        """Return the full name, which ``parse`` reads back."""
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.name}"

    @property
    def topic(self) -> TopicName:
        """The topic itself; ``SegmentName`` has the same property."""
        return self

    @property
    def internal(self) -> bool:
        """Whether its name, namespace or tenant is reserved for internal topics, which users do not see."""
        return any(part.startswith(INTERNAL_PREFIX) for part in (self.tenant, self.namespace, self.name))

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Return the topic that ``text`` names, or raise InvalidName.

        Short forms are completed: ``name`` to ``topic://public/default/name``, ``tenant/namespace/name`` to
        ``topic://tenant/namespace/name``.
        """
        _check_text(text)
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = DEFAULT_DOMAIN, text
        elif domain == SEGMENT:
            raise InvalidName(text, f"it names a segment, not a topic; {_TOPIC_FORM}")
        parts = rest.split("/")
        if not separator and len(parts) == 1:
            parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, *parts]
        if len(parts) != 3:
            count = "1 part" if len(parts) == 1 else f"{len(parts)} parts"
            raise InvalidName(text, f"it has {count}; {_TOPIC_FORM}")
        tenant, namespace, name = parts
        # Checked here as well, so that the error quotes the given text and not its completed form.
        _check_parts(tenant, namespace, name, text)
        return cls(domain, tenant, namespace, name)


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A segment of the topic ``topic://tenant/namespace/name``: the hash values ``start`` to ``end``, both included.

    Every instance is valid: constructing one that could not be parsed back raises InvalidName.
    """

    tenant: str
    namespace: str
    name: str
    start: int
    end: int
    segment_id: int

    def __post_init__(self) -> None:
        text = str(self)
        _check_parts(self.tenant, self.namespace, self.name, text)
        if not 0 <= self.start <= self.end <= HASH_MAX:
            raise InvalidName(text, "its hash range must start at or before its end, within 0000-ffff")
        if not 0 <= self.segment_id <= SEGMENT_ID_MAX:
            raise InvalidName(text, "its segment id must be between 0 and 2**63 - 1")

    def __str__(self) -> str:
        """Return the full name, which ``parse`` reads back."""
        where = f"{self.start:04x}-{self.end:04x}-{self.segment_id}"
        return f"{SEGMENT}://{self.tenant}/{self.namespace}/{self.name}/{where}"

    @property
    def topic(self) -> TopicName:
        """The topic of the segment."""
        return TopicName(TOPIC, self.tenant, self.namespace, self.name)

    def covers(self, hash_value: int) -> bool:
        """Return whether messages whose key has this hash value belong to the segment."""
        return self.start <= hash_value <= self.end

    @classmethod
    def parse(cls, text: str) -> SegmentName:
        """Return the segment that ``text`` names, or raise InvalidName; there is no short form."""
        _check_text(text)
        domain, _, rest = text.partition("://")
        parts = rest.split("/")
        if domain != SEGMENT or len(parts) != 4:
            raise InvalidName(text, f"it does not name a segment; {_SEGMENT_FORM}")
        tenant, namespace, name, where = parts
        match = _RANGE.fullmatch(where)
        # 19 digits hold every segment id; the bound also keeps int() from parsing endless digits.
        if match is None or len(match[3]) > 19:
            raise InvalidName(text, f"its last part does not describe a segment; {_SEGMENT_FORM}")
        _check_parts(tenant, namespace, name, text)
        return cls(tenant, namespace, name, int(match[1], 16), int(match[2], 16), int(match[3]))


def parse_name(text: str) -> TopicName | SegmentName:
    """Return the topic or segment that ``text`` names, or raise InvalidName."""
    _check_text(text)
    if text.startswith(f"{SEGMENT}://"):
        return SegmentName.parse(text)
    return TopicName.parse(text)


def dead_letter_topic(topic: str, subscription: str) -> str:
    """Return the full name of the default dead-letter topic of a subscription; it may be no valid name."""
    return f"{topic}-{subscription}-DLQ"


def topic_of(segment: str) -> TopicName:
    """Return the topic of a segment, given by its full name; a persistent topic is its own only segment."""
    _check_text(segment)
    return _topic_of(segment)


@lru_cache(maxsize=_TOPICS_KEPT_MAX)
def _topic_of(segment: str) -> TopicName:
    return parse_name(segment).topic


def segment_id_of(name: TopicName | SegmentName) -> int:
    """Return a segment's id in its topic's layout; a persistent topic is its own only segment."""
    return name.segment_id if isinstance(name, SegmentName) else ONLY_SEGMENT_ID


def _check_text(text: object) -> None:
    """Raise InvalidName for a value that cannot be a name, before it is parsed."""
    if not isinstance(text, str):
        raise InvalidName(text, f"a name is text, not a {type(text).__name__}")
    if len(text) > KNOWN_NAME_CHARACTERS_MAX:
        raise InvalidName(text, f"it has {len(text)} characters, and at most {NAME_BYTES_MAX} bytes are allowed")


def _check_parts(tenant: str, namespace: str, name: str, text: str) -> None:
    """Check the three parts that every name has."""
    check_name_part(tenant, "tenant", text)
    check_name_part(namespace, "namespace", text)
    check_name_part(name, "name", text)
