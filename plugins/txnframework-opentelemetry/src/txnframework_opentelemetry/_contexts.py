"""Contexts of spans in the headers of messages, in the format of the configured propagators: by default W3C's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, get_current_span, set_span_in_context

if TYPE_CHECKING:  # otherwise the list of commands would import the client
    from txnframework import Message


def context_of(message: Message) -> Context:
    """
    Return the context in which a message was sent, as the parent of the spans that process it.

    Empty if the message carries none, or one that is not valid.
    """
    return _extracted(message.headers)


def headers_of(span: Span) -> tuple[tuple[str, bytes], ...]:
    """Return the headers that carry a span's context; none if it is not recorded anywhere."""
    if not span.get_span_context().is_valid:
        return ()
    carrier: dict[str, str] = {}
    propagate.inject(carrier, set_span_in_context(span))
    return tuple((name, value.encode()) for name, value in carrier.items())


def senders_of(headers: Iterable[Mapping[str, bytes]], senders_max: int) -> list[SpanContext]:
    """Return the spans that sent these messages, each once, and at most ``senders_max``."""
    found: dict[tuple[int, int], SpanContext] = {}
    for one in headers:
        if len(found) >= senders_max:
            break
        sender = get_current_span(_extracted(one)).get_span_context()
        if sender.is_valid:
            found[sender.trace_id, sender.span_id] = sender
    return list(found.values())


def _extracted(headers: Mapping[str, bytes]) -> Context:
    # From an empty context: otherwise a message without a context would seem to be sent by the current span.
    propagator = propagate.get_global_textmap()
    fields = propagator.fields
    carrier = {name: value.decode("latin-1") for name, value in headers.items() if name.lower() in fields}
    return propagator.extract(carrier, Context())
