"""Serializers: decoding reverses encoding, and errors about a value do not show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from txnframework.errors import InvalidInput, MissingExtra
from txnframework.serializers import (
    MsgspecJson,
    MsgspecMessagePack,
    PlainJson,
    PlainText,
    PydanticJson,
    Serializer,
    schema_id_of,
)

SECRET = "hunter2"


class Order(msgspec.Struct):
    customer: str
    cents: int = 0
    prices: dict[str, int] = {}


class LargeOrder(Order):
    pallets: int = 1


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    cents: int = 0


@dataclass
class Invoice:
    customer: str


ALL: list[tuple[Serializer[Any], Any]] = [
    (MsgspecJson(Order), Order("ada", 250)),
    (MsgspecMessagePack(Order), Order("ada", 250)),
    (MsgspecJson(Invoice), Invoice("ada")),
    (MsgspecMessagePack(list[Order]), [Order("ada"), Order("bob")]),
    (PlainJson(), {"customer": "ada", "prices": [1, 2.5, None]}),
    (PlainText(), "drei Äpfel"),
]


@pytest.mark.parametrize(("serializer", "content"), ALL, ids=[repr(one) for one, _ in ALL])
def test_a_content_comes_back(serializer: Serializer[Any], content: Any) -> None:
    """The decoded content is equal, also if decoded from bytes."""
    stored = serializer.encode(content)
    assert isinstance(stored, bytes)
    assert serializer.decode(stored) == content


def test_pydantic_models() -> None:
    """Fields are stored under their aliases, and validated."""
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        cents: int = pydantic.Field(alias="amount", gt=0)
        notes: dict[str, int] = pydantic.Field(default_factory=dict)

    serializer = PydanticJson(Model, schema="order", version=2)
    stored = serializer.encode(Model(amount=250))
    assert b'"amount":250' in stored
    assert serializer.decode(stored) == Model(amount=250)
    assert repr(serializer) == "PydanticJson(Model, order:2)"
    reasons = [explained(serializer, value) for value in (b'{"amount":-1}', b'{"amount":1,"notes":{"hunter2":"x"}}')]
    assert reasons == [
        "it does not fit Model: greater_than at field 'amount'",
        "it does not fit Model: int_parsing at field 'notes'",
    ]
    assert SECRET not in explained(serializer, b'{"amount":"hunter2"}')
    assert explained(serializer, b"{") == "it does not fit Model: json_invalid"


def test_without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(__import__("sys").modules, "pydantic", None)
    with pytest.raises(MissingExtra, match='pip install "txnframework\\[pydantic\\]"'):
        PydanticJson(Order)


def explained(serializer: Serializer[Any], value: bytes) -> str:
    try:
        found = serializer.decode(value)
    except Exception as error:
        return serializer.explain(error)
    raise AssertionError(f"decoded as {found}")


@pytest.mark.parametrize(
    ("serializer", "value", "reason"),
    [
        (MsgspecJson(Order), b'{"customer":"ada","cents":"hunter2"}', "it does not fit Order at $.cents"),
        (MsgspecJson(Order), b'{"customer":"ada","prices":{"hunter2":""}}', "it does not fit Order at $.prices[...]"),
        (MsgspecJson(Strict), b'{"hunter2":1}', "it does not fit Strict"),
        (MsgspecJson(Order), b'{"customer":hunter2', "it does not fit Order: it is malformed or truncated"),
        (MsgspecJson(Order), b'{"customer":"\xff"}', "it does not fit Order: it is malformed or truncated"),
        (MsgspecMessagePack(Order), b"\xa7hunter2", "it does not fit Order"),
        (MsgspecMessagePack(Order), b"\xc1hunter2", "it does not fit Order: it is malformed or truncated"),
        (PlainJson(), b"hunter2", "it is not JSON: it is malformed or truncated"),
        (PlainText(), b"hunter2\xff", "it is not text in UTF-8"),
    ],
)
def test_a_bad_value_is_explained_without_showing_it(serializer: Serializer[Any], value: bytes, reason: str) -> None:
    """The error has field names only."""
    assert explained(serializer, value) == reason


@pytest.mark.parametrize(
    ("serializer", "content", "sentence"),
    [
        (MsgspecJson(Order), {"customer": "ada"}, "the serializer MsgspecJson(Order) does not encode a dict"),
        (PlainText(), b"bytes", "the serializer PlainText() does not encode a bytes"),
        (PlainText(), "\ud800", "a str cannot be encoded: UnicodeEncodeError"),
        (PlainJson(), object(), "a object cannot be encoded: TypeError"),
        (MsgspecJson(Order) | PlainText(schema="text"), 3, "MsgspecJson(Order) | PlainText(text:1) does not encode"),
    ],
)
def test_what_cannot_be_encoded(serializer: Serializer[Any], content: Any, sentence: str) -> None:
    """The error is a sentence with the type."""
    with pytest.raises(InvalidInput) as refused:
        serializer.for_content(content).encode(content)
    assert sentence in str(refused.value)


def test_several_serializers() -> None:
    """The schema id chooses the decoder, and the type of the content the encoder."""
    first, second = MsgspecJson(Order, schema="order", version=1), MsgspecJson(LargeOrder, schema="order", version=2)
    text = PlainText()
    both = first | second | text
    assert [both.for_schema(one) for one in ("order:1", "order:2", None, "order:3")] == [first, second, text, None]
    assert both.for_content(Order("ada")) is first
    assert both.for_content(LargeOrder("ada")) is second, "an Order as well, and more exactly a LargeOrder"
    assert both.decode(both.encode("text")) == "text"
    with pytest.raises(ValueError, match="without a schema id"):
        (first | second).decode(b"{}")


def test_two_serializers_for_the_same_messages() -> None:
    """Two serializers are refused if either could decode a message."""
    with pytest.raises(InvalidInput, match="two of the serializers have the schema id order:1"):
        MsgspecJson(Order, schema="order") | MsgspecJson(Invoice, schema="order")
    with pytest.raises(InvalidInput, match="two of the serializers have no schema"):
        PlainJson() | PlainText()


@pytest.mark.parametrize(("name", "version"), [("", 1), ("a b", 1), ("a:b", 1), ("a\n", 1), ("x" * 201, 1), (3, 1)])
def test_names_of_schemas(name: Any, version: int) -> None:
    """A schema name has a limited set of characters, so that its id can be printed and parsed."""
    with pytest.raises(InvalidInput, match="the name of a schema"):
        schema_id_of(name, version)


@pytest.mark.parametrize("version", [-1, 2**31, True, "1", 1.0])
def test_versions_of_schemas(version: Any) -> None:
    with pytest.raises(InvalidInput, match="the version of a schema"):
        PlainJson(schema="order", version=version)


def test_a_serializer_of_ones_own() -> None:
    """Its errors show only their type, unless the serializer explains them."""

    class Upper(Serializer[str]):
        def encode(self, content: str) -> bytes:
            return content.upper().encode()

        def decode(self, value: bytes) -> str:
            raise ValueError(value)

    assert explained(Upper(), b"hunter2") == "the serializer raised ValueError"
    assert Upper(schema="upper").schema_id == "upper:1"
