"""The report: one HTML file without external resources. The verdict first, then its details.

    verdict | figures | notes | faults with coordinates | pictures | days | classes | topics | hours | latest | rejected

All data from Kafka is escaped: senders choose the bytes of topics, codes and origins.
"""

from collections.abc import Iterable, Sequence
from html import escape

from pyspark.sql import Row

from schemas.tables import AuditClass
from spark_jobs.audit_rules.classes import FAULTS, RULES
from spark_jobs.audit_run.arguments import AuditArguments, iso
from spark_jobs.report.plots import histogram_svg, span_text, timeline_svg, trend_svg
from spark_jobs.report.style import STYLE
from spark_jobs.report.summary import AuditVerdict, DaySummary, Details, LatenessSummary, TopicVerdict

_SELDOM = ("late", "moved")
"""Classes of deliveries that are shown only if there are any."""


def write_report(
    verdict: AuditVerdict, details: Details, arguments: AuditArguments, trend: Sequence[DaySummary] = ()
) -> None:
    """Write `verdict.report` atomically."""
    draft = verdict.report.with_suffix(".html.new")
    draft.write_text(render(verdict, details, arguments, trend), encoding="utf-8")
    draft.replace(verdict.report)


def render(verdict: AuditVerdict, details: Details, arguments: AuditArguments, trend: Sequence[DaySummary] = ()) -> str:
    body = "".join(
        (
            _verdict(verdict, arguments),
            _figures(verdict),
            _notes(verdict, details),
            _faults(verdict, details),
            _pictures(details),
            _trend(verdict, trend),
            _classes(verdict),
            _topics(verdict),
            _hours(details),
            _latest(details),
            _rejected(details),
            _judged(arguments),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Timer audit: {escape(verdict.headline)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _verdict(verdict: AuditVerdict, arguments: AuditArguments) -> str:
    kind = "clean" if verdict.clean else "faulty"
    span = ""
    if arguments.from_ms is not None or arguments.to_ms is not None:
        since = iso(arguments.from_ms) if arguments.from_ms is not None else "the start"
        until = iso(arguments.to_ms) if arguments.to_ms is not None else "now"
        span = f" · requests from {since} to {until}"
    return (
        f'<header class="{kind}"><p class="kicker">Timer audit of {escape(arguments.timer_topic)}</p>'
        f"<h1>{escape(verdict.headline)}</h1><p>as of {iso(verdict.as_of_ms)}{span}</p></header>"
    )


def _figures(verdict: AuditVerdict) -> str:
    late = verdict.lateness
    counts = {name: verdict.counts[name] for name in ("delivered", "late", "moved", "pending", "rejected")}
    tiles = [
        ("requests", f"{verdict.requests:,}"),
        *((name, f"{count:,}") for name, count in counts.items() if count or name not in _SELDOM),
        *((f"lateness {name}", _ms(value)) for name, value in zip(("p50", "p99", "max"), late[1:], strict=True)),
    ]
    return f'<dl class="tiles">{"".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)}</dl>'


def _notes(verdict: AuditVerdict, details: Details) -> str:
    notes = [*verdict.gaps, *verdict.notes]
    if details.by_order:
        notes.append(
            f"{details.by_order:,} fates of ids rest on the order of the timer topic and on time: no receipt tells."
        )
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _faults(verdict: AuditVerdict, details: Details) -> str:
    if verdict.clean:
        return ""
    meaning = {rule.name.value: rule.meaning for rule in RULES}
    classes = _table(
        ("class", "#rows", "meaning"),
        ((_badge(name), f"{count:,}", escape(meaning[name])) for name, count in verdict.faults.items()),
    )
    examples = _table(
        ("class", "request", "real topic", "due", "#late", "found"),
        (
            (_badge(r["class"]), _text(r.origin), _text(r.target), _time(r.due_ms), _ms(r.lateness_ms), _found(r))
            for r in details.faults
        ),
    )
    shown = f"{len(details.faults)} of {sum(verdict.faults.values()):,}; all are in requests/."
    return f"<section><h2>Faults</h2>{classes}<h3>Examples</h3><p>{shown}</p>{examples}</section>"


def _found(row: Row) -> str:
    """Return the place of the first delivery, and its faults."""
    parts = [_place(row)] if row.delivered_topic is not None else []
    if row.deliveries > 1:
        parts.append(f"{row.deliveries} deliveries")
    if row.rejections:
        parts.append(f"{row.rejections} × rejected {_text(row.error)}")
    if row.altered:
        parts.append("differs: " + escape(", ".join(row.altered)))
    others = [name for name in row.faults if name != row["class"]]
    if others:
        parts.append("also " + escape(", ".join(others)))
    return "; ".join(parts) or "nothing"


def _pictures(details: Details) -> str:
    if not details.histogram:
        return ""
    drawn = [f"<figure><figcaption>Deliveries by lateness</figcaption>{histogram_svg(details.histogram)}</figure>"]
    if picture := timeline_svg(details.timeline, details.timeline_width_ms):
        drawn.append(f"<figure><figcaption>Over time (UTC)</figcaption>{picture}</figure>")
    return f'<section><h2>Lateness</h2><div class="pictures">{"".join(drawn)}</div></section>'


def _trend(verdict: AuditVerdict, past: Sequence[DaySummary]) -> str:
    """Return the section on the days of a daily audit."""
    if not past:
        return ""
    late, counts = verdict.lateness, verdict.counts
    delivered = counts[AuditClass.DELIVERED] + counts[AuditClass.LATE]
    day = iso(verdict.as_of_ms)[:10]
    today = DaySummary(
        day, verdict.requests, sum(verdict.faults.values()), delivered, counts[AuditClass.PENDING], *late[1:]
    )
    days = [*past, today]
    rows = (
        (d.day, f"{d.requests:,}", _faults_cell(d.faults), f"{d.delivered:,}", f"{d.pending:,}", *map(_ms, d[5:]))
        for d in reversed(days)
    )
    table = _table(("day", "#judged", "#faults", "#delivered", "#pending", "#p50", "#p99", "#max"), rows)
    picture = f"<figure><figcaption>Lateness by day</figcaption>{trend_svg(days)}</figure>"
    return f'<section><h2>Days</h2><div class="pictures">{picture}</div>{table}</section>'


def _classes(verdict: AuditVerdict) -> str:
    rows = ((_badge(name), f"{count:,}") for name, count in verdict.counts.items() if count)
    return (
        f"<section><h2>What became of them</h2>{_table(('class', '#rows'), rows)}</section>" if verdict.requests else ""
    )


def _hours(details: Details) -> str:
    if not details.hours:
        return ""
    rows = (
        (
            f'<span class="nowrap">{iso(r.hour_ms)[:16]}</span>',
            _text(r.topic),
            f"{r.deliveries:,}",
            *(_ms(r[f"lateness_{name}_ms"]) for name in ("p50", "p99", "max")),
        )
        for r in details.hours
    )
    head = ("hour (UTC)", "topic", "#deliveries", "#p50", "#p99", "#max")
    return f"<section><h2>Worst hours</h2><p>All are in hours/.</p>{_table(head, rows)}</section>"


def _faults_cell(count: int) -> str:
    return f'<b class="bad">{count:,}</b>' if count else "0"


def _topics(verdict: AuditVerdict) -> str:
    head = ("topic", "#requests", "#delivered", "#pending", "#rejected", "#faults", "#p50", "#p99", "#max", "clock")
    more = verdict.topics_in_all - len(verdict.topics)
    rest = f"<p>{more:,} more topics are in topics/.</p>" if more > 0 else ""
    return f"<section><h2>Real topics</h2>{_table(head, map(_topic_cells, verdict.topics))}{rest}</section>"


def _topic_cells(topic: TopicVerdict) -> Sequence[str]:
    counts = [f"{topic.counts[c.value]:,}" for c in (AuditClass.DELIVERED, AuditClass.PENDING, AuditClass.REJECTED)]
    faults = _faults_cell(topic.faults)
    name = _text(topic.topic) if topic.topic is not None else "<i>none named</i>"
    return (name, f"{topic.requests:,}", *counts, faults, *_lateness_cells(topic.lateness), _text(topic.clock))


def _lateness_cells(late: LatenessSummary) -> Sequence[str]:
    return tuple(_ms(value) for value in late[1:])


def _latest(details: Details) -> str:
    if not details.latest:
        return ""
    head = ("#late", "request", "delivered at", "due", "#by the bridge", "class")
    rows = (
        (
            _ms(r.lateness_ms),
            _text(r.origin),
            _place(r),
            _time(r.due_ms),
            _ms(r.released_ms - r.due_ms if r.released_ms is not None else None),
            _badge(r["class"]),
        )
        for r in details.latest
    )
    return f"<section><h2>Latest {len(details.latest)}</h2>{_table(head, rows)}</section>"


def _rejected(details: Details) -> str:
    if not details.codes:
        return ""
    rows = ((_text(code), f"{count:,}") for code, count in details.codes)
    return f"<section><h2>Rejected by code</h2>{_table(('code', '#requests'), rows)}</section>"


def _judged(arguments: AuditArguments) -> str:
    rules = _table(("class", "meaning"), ((_badge(rule.name.value), escape(rule.meaning)) for rule in RULES))
    return (
        "<section><h2>How it was judged</h2>"
        f"<p>From the topics alone, committed records only: {escape(arguments.timer_topic)}, "
        f"{escape(arguments.rejected_topic)}, {escape(arguments.receipts_topic)} "
        "and the real topics that requests name, joined on timer-origin. "
        f"What is due within {span_text(arguments.settle_ms)} of the audit's time still counts as pending. "
        "Lateness is the delivered record's timestamp less the due time. The clock is the broker's where the topic has "
        "LogAppendTime; CreateTime is the bridge's own clock at release. The first rule that holds names the class; "
        f"a request's other faults stand beside it. Where no receipt tells when a cancel was read, it is taken as read "
        f"{span_text(arguments.tolerance_ms)} after it was sent; clocks may be {span_text(arguments.skew_ms)} apart. "
        f"What is proved, and what is not: docs/audit.md.</p>{rules}</section>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already; `#` before a heading makes it a column of numbers. A wide row is a card on a phone."""
    kinds = [' class="n"' if name.startswith("#") else "" for name in head]
    labels = [name.removeprefix("#") for name in head]
    top = "".join(f"<th{kind}>{label}</th>" for label, kind in zip(labels, kinds, strict=True))
    lines = (
        "".join(f'<td{k} data-label="{label}">{c}</td>' for c, k, label in zip(row, kinds, labels, strict=True))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    wide = ' class="wide"' if len(head) > 2 else ""
    return f'<div class="scroll"><table{wide}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _badge(name: str) -> str:
    kind = "bad" if name in FAULTS else "good"
    return f'<span class="badge {kind}">{escape(name)}</span>'


def _text(value: str | None) -> str:
    """Long names break at their slashes and dots, or anywhere."""
    if value is None:
        return "–"
    shown = value if len(value) <= 120 else value[:117] + "..."
    return escape(shown).replace("/", "/<wbr>").replace(".", ".<wbr>")


def _place(row: Row) -> str:
    return _text(f"{row.delivered_topic}/{row.delivered_partition}/{row.delivered_offset}")


def _ms(value: int | None) -> str:
    return "–" if value is None else f'<span class="nowrap">{span_text(value)}</span>'


def _time(at_ms: int | None) -> str:
    return "–" if at_ms is None else f'<span class="nowrap">{iso(at_ms).removesuffix(" UTC")}</span>'
