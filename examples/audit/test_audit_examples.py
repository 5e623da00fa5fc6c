"""The examples of audits start jobs of ours, with arguments that the jobs read and releases that exist."""

import shlex
from pathlib import Path
from typing import Any

import pyspark
import yaml

from spark_jobs.audit_run.arguments import AuditArguments, parse
from spark_jobs.package import JOBS
from spark_jobs.platform.session import KAFKA_PACKAGE

HERE = Path(__file__).parent


def audit(words: list[str], tmp_path: Path) -> AuditArguments:
    """Return the arguments as the job reads them; `words` begin with the job."""
    job, *given = words
    assert job in JOBS
    (tmp_path / "bridge.toml").write_text('bootstrap_servers = "b:1"')
    (found,) = parse([str(tmp_path / "bridge.toml") if word.endswith(".toml") else word for word in given], {})
    return found


def test_the_spark_application(tmp_path: Path) -> None:
    """It was validated by hand against the CRD of kubeflow/spark-operator, which is large."""
    spec: dict[str, Any] = yaml.safe_load((HERE / "spark-application.yaml").read_text())["spec"]
    assert (spec["sparkVersion"], spec["deps"]["packages"]) == (pyspark.__version__, [KAFKA_PACKAGE])
    assert audit(spec["arguments"], tmp_path).daily


def test_the_line_of_cron(tmp_path: Path) -> None:
    *_, line = (HERE / "crontab").read_text().splitlines()
    name, *words = shlex.split(line.split(maxsplit=5)[-1].partition(" > ")[0])
    assert name == "timer-bridge"
    assert audit(words, tmp_path).daily
