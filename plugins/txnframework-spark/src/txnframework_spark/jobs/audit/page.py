"""The HTML page of an audit: one file without scripts, with plots as SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from txnframework_spark.jobs.audit.findings import CHECKS
from txnframework_spark.jobs.audit.report import AuditResult

ROWS_MAX: Final = 40
"""The most bars of a plot, and the most findings of a check, on the page; Parquet has all of them."""

_WIDTH, _ROW, _LABEL, _NUMBER = 960, 22, 360, 110
_VISIBLE: Final = "#2f7d4f"
_KINDS: Final = ((_VISIBLE, "visible"), ("#b8442f", "aborted"), ("#c9a227", "undecided"))
_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1000px; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } td, th { padding: .25rem .6rem; text-align: left; vertical-align: top }
tr:nth-child(even) { background: #f6f6f4 } td.n { text-align: right; font-variant-numeric: tabular-nums }
.ok { color: #2f7d4f } .bad { color: #b8442f; font-weight: 600 } code { font-size: .85em; word-break: break-all }
svg text { font: 12px system-ui, sans-serif }
"""
Bar = tuple[str, Sequence[tuple[int, str, str]]]
"""A label, and its parts: value, color and meaning."""


def render(result: AuditResult) -> str:
    """Return the page."""
    facts, found = result.facts, result.found
    verdict = (
        f'<p class="bad">{len(found)} contradictions found.</p>' if found else '<p class="ok">All checks passed.</p>'
    )
    when = datetime.fromtimestamp(facts.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    totals = (
        f"<p>{facts.transactions:,} transactions, {facts.messages:,} messages in {facts.entries:,} entries of"
        f" {facts.ledgers:,} ledgers, {facts.bytes:,} bytes; store <code>{escape(facts.store)}</code>, {when}.</p>"
    )
    parts = (
        f"<h1>Audit</h1>{verdict}{totals}",
        f"<h2>Checks</h2>{_checks(result)}",
        *(f"<h2>{escape(check)}</h2>{_findings(result, check)}" for check, one in result.findings.items() if one),
        f"<h2>Messages by topic</h2>{_legend()}{_plot(_by_topic(result))}",
        f"<h2>Messages by day</h2>{_plot(_by_day(result))}",
        f"<h2>Largest ledgers, in bytes</h2>{_plot(_by_size(result))}",
        f"<h2>Hashes</h2>{_hashes(result)}",
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Audit</title><style>{_STYLE}</style>'
        + "".join(parts)
        + "</html>\n"
    )


def _checks(result: AuditResult) -> str:
    rows = []
    for check, proved in CHECKS.items():
        if check not in result.findings:
            state = "<td>not requested</td>"
        elif count := len(result.findings[check]):
            state = f'<td class="bad">{count:,} found</td>'
        else:
            state = '<td class="ok">proved</td>'
        rows.append(f"<tr><td>{escape(check)}</td><td>{escape(proved)}</td>{state}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _findings(result: AuditResult, check: str) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(one.name)}</code></td><td>{'' if one.ledger < 0 else f'{one.ledger}:{one.entry}'}</td>"
        f"<td><code>{escape(one.transaction)}</code></td><td>{escape(one.detail)}</td></tr>"
        for one in result.findings[check][:ROWS_MAX]
    )
    return f"<table><tr><th>where<th>entry<th>transaction<th>what</tr>{rows}</table>"


def _by_topic(result: AuditResult) -> list[Bar]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in result.ledgers:
        counts = sums[one.topic]
        counts[0] += one.messages - one.aborted - one.undecided
        counts[1] += one.aborted
        counts[2] += one.undecided
    ordered = sorted(sums.items(), key=lambda found: -sum(found[1]))
    return [
        (topic, [(count, *color) for count, color in zip(counts, _KINDS, strict=True)]) for topic, counts in ordered
    ]


def _by_day(result: AuditResult) -> list[Bar]:
    """Return the messages by the day of the last message of their ledger."""
    sums: dict[str, int] = defaultdict(int)
    for one in result.ledgers:
        if one.last_ms is not None:
            sums[datetime.fromtimestamp(one.last_ms / 1000, UTC).strftime("%Y-%m-%d")] += one.messages
    return [(day, [(count, _VISIBLE, "messages")]) for day, count in sorted(sums.items())[-ROWS_MAX:]]


def _by_size(result: AuditResult) -> list[Bar]:
    largest = sorted(result.ledgers, key=lambda one: -one.bytes)
    return [(f"{one.name} {one.ledger}", [(one.bytes, _VISIBLE, "bytes")]) for one in largest]


def _legend() -> str:
    return "<p>" + " ".join(f'<span style="color:{color}">&#9632;</span> {name}' for color, name in _KINDS) + "</p>"


def _plot(bars: Sequence[Bar]) -> str:
    """Return a plot of horizontal bars, the longest over the whole width."""
    shown = bars[:ROWS_MAX]
    largest = max((sum(value for value, _, _ in parts) for _, parts in shown), default=0) or 1
    scale = (_WIDTH - _LABEL - _NUMBER) / largest
    drawn = []
    for number, (label, parts) in enumerate(shown):
        top, left = number * _ROW, float(_LABEL)
        text = label if len(label) <= 52 else f"...{label[-49:]}"
        drawn.append(f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(text)}</text>')
        for value, color, meaning in parts:
            title = f"<title>{escape(label)}: {value:,} {meaning}</title>"
            drawn.append(
                f'<rect x="{left:.1f}" y="{top + 3}" width="{value * scale:.1f}" height="{_ROW - 6}" fill="{color}">'
                f"{title}</rect>"
            )
            left += value * scale
        total = sum(value for value, _, _ in parts)
        drawn.append(f'<text x="{left + 6:.1f}" y="{top + 15}">{total:,}</text>')
    more = f"<p>{len(bars) - ROWS_MAX:,} more are in the Parquet files.</p>" if len(bars) > ROWS_MAX else ""
    return f'<svg viewBox="0 0 {_WIDTH} {_ROW * max(1, len(shown))}" role="img">{"".join(drawn)}</svg>{more}'


def _hashes(result: AuditResult) -> str:
    rows = "".join(
        f'<tr><td><code>{escape(one.name)}</code></td><td class="n">{one.ledger}</td><td class="n">{one.entries:,}</td>'
        f"<td><code>{one.hash[:16]}...</code></td></tr>"
        for one in result.ledgers[:ROWS_MAX]
    )
    return f"<table><tr><th>managed ledger<th>ledger<th>entries<th>hash</tr>{rows}</table>"
