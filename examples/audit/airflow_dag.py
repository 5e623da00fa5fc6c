"""A daily audit of each timer topic by Airflow 3. A fault fails the task at once; other failures are retried.

Airflow's worker needs `pip install 'kafka-timer-bridge[spark]'` and Java 17 or 21. If another environment has them, set
TIMER_BRIDGE to its command.
"""

import os
import subprocess
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

TIMER_BRIDGE = os.environ.get("TIMER_BRIDGE", "timer-bridge")
AUDITS = os.environ.get("TIMER_AUDITS", "/shared/audits")
TIMER_TOPICS = ("timer.requests", "timer.payments")
FAULT = 3


def command(timer_topic: str) -> list[str]:
    where = ["--config", "/etc/timer-bridge/bridge.toml", "--timer-topic", timer_topic]
    return [TIMER_BRIDGE, "audit", *where, "--out", f"{AUDITS}/{timer_topic}", "--daily", "--pushgateway", "push:9091"]


def audit(timer_topic: str) -> None:
    """Run the audit. It continues where its last run ended, so the next run makes up for a failed one."""
    code = subprocess.run(command(timer_topic), check=False).returncode
    if code == FAULT:
        raise AirflowFailException(f"{timer_topic}: a fault was found; see {AUDITS}/{timer_topic}/report.html")
    if code != 0:
        raise RuntimeError(f"{timer_topic}: the audit failed (exit code {code}); see the log above")


@dag(schedule="15 2 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)  # type: ignore[untyped-decorator]
def timer_audit() -> None:
    for topic in TIMER_TOPICS:
        name = f"audit_{topic.replace('.', '_')}"
        task(task_id=name, retries=3, retry_delay=timedelta(minutes=10))(audit)(topic)


timer_audit()
