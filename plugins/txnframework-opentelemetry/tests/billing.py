"""The program of the page on tracing."""

from opentelemetry import trace

from txnframework import Message
from txnframework_opentelemetry import context_of

tracer = trace.get_tracer("billing")


async def bill(message: Message) -> str:
    with tracer.start_as_current_span("bill", context=context_of(message)) as span:
        return trace.format_trace_id(span.get_span_context().trace_id)
