"""The report: one HTML file without external resources (report.html). The verdict first, then its details.

All data from Kafka is escaped: senders choose the bytes of topics, codes and origins.
"""

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from pyspark.sql import Row

from schemas.units import span_text
from spark_jobs.audit_rules.judgement import OUT_OF_ORDER, OUT_OF_ORDER_MEANING
from spark_jobs.audit_rules.verdicts import RULES
from spark_jobs.audit_run.arguments import AuditArguments, iso
from spark_jobs.report.plots import histogram_svg, lateness_svg
from spark_jobs.report.summary import AuditVerdict, Details


def render(verdict: AuditVerdict, details: Details, arguments: AuditArguments, trend: Sequence[Row] = ()) -> str:
    """Return the page. `trend`: the earlier days of a daily audit, rows of DAYS and `day`."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, extensions=["jinja2.ext.do"])
    environment.filters |= {"iso": iso, "span": span_text, "number": "{:,}".format}
    days = [*trend, Row(day=iso(verdict.as_of_ms)[:10], **verdict.day_row)] if trend else []
    deliveries = f"deliveries per {span_text(details.timeline_width_ms)}"
    return environment.from_string(files(__package__).joinpath("report.html").read_text(encoding="utf-8")).render(
        verdict=verdict,
        details=details,
        arguments=arguments,
        days=days,
        fault_names=verdict.fault_counts.keys(),
        meanings={rule.name.value: rule.meaning for rule in RULES} | {OUT_OF_ORDER: OUT_OF_ORDER_MEANING},
        histogram=histogram_svg(details.histogram) if details.histogram else "",
        timeline=lateness_svg(details.timeline, "at_ms", "deliveries", deliveries),
        trend=lateness_svg(days, "as_of_ms", "faults", "faults"),
    )
