"""The examples of audits start commands of ours, with files and releases that exist."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
import pytest
import yaml

from spark_jobs.audit_run.arguments import AuditArguments, parse
from spark_jobs.package import JOBS
from spark_jobs.platform.connector import KAFKA_PACKAGE

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
    told: dict[str, Any] = yaml.safe_load((HERE / "spark-application.yaml").read_text())
    spec = told["spec"]
    assert (told["apiVersion"], told["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    assert spec["sparkVersion"] == pyspark.__version__
    assert spec["deps"]["packages"] == [KAFKA_PACKAGE]
    made = [spec["mainApplicationFile"], *spec["deps"]["pyFiles"]]
    assert {path.rpartition("/")[2] for path in made} == {"timer-bridge-job.py", "timer-bridge.zip"}
    found = audit(spec["arguments"], tmp_path)
    assert found.daily
    mounted = {mount["name"]: mount["mountPath"] for mount in spec["driver"]["volumeMounts"]}
    assert spec["executor"]["volumeMounts"] == spec["driver"]["volumeMounts"]
    assert mounted.keys() == {volume["name"] for volume in spec["volumes"]}
    assert str(found.out).startswith(f"{mounted['audits']}/")


def test_the_line_of_cron(tmp_path: Path) -> None:
    *_, line = (HERE / "crontab").read_text().splitlines()
    minute, hour, *every, rest = line.split(maxsplit=5)
    assert (int(minute) < 60, int(hour) < 24, every) == (True, True, ["*", "*", "*"])
    name, *words = shlex.split(rest.partition(" > ")[0])
    assert name == "timer-bridge"
    found = audit(words, tmp_path)
    assert (found.daily, found.metrics_file) == (True, Path("/textfiles/timer-audit.prom"))
    assert re.search(r"2>&1 \|\| cat (\S+)$", rest), "cron's mail has what an audit with an exit code has printed"


RECORDER = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done > {told}
for word in "$@"; do case $word in /*.zip | /*.py | /*.gz#*) ls "${{word%#*}}" >> {there} ;; esac; done
"""
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv_pack"*) touch "$5" ;;
    *) exec {python} "$@" ;;
esac
"""


def test_the_script_for_yarn_sends_files_that_exist(tmp_path: Path) -> None:
    """spark-submit and venv-pack are stand-ins that record their arguments, as there is no YARN."""
    told, there = tmp_path / "told", tmp_path / "there"
    for name, text in (
        ("spark-submit", RECORDER.format(told=told, there=there)),
        ("python", PYTHON.format(python=sys.executable)),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "PYTHON": str(tmp_path / "python"),
        "PYTHONPATH": str(HERE.parents[1]),
    }
    subprocess.run([HERE / "yarn.sh", "--late-ms", "5000"], env=environment, check=True, cwd=tmp_path)
    words = told.read_text().splitlines()
    flags = dict(pairwise(words))
    assert (flags["--master"], flags["--deploy-mode"], flags["--packages"]) == ("yarn", "cluster", KAFKA_PACKAGE)
    assert flags["--archives"].endswith("environment.tar.gz#environment")
    assert "spark.executorEnv.PYSPARK_PYTHON=./environment/bin/python" in words
    assert len(there.read_text().splitlines()) == 3, "the environment, our packages, the script"
    job = next(number for number, word in enumerate(words) if word.endswith("timer-bridge-job.py"))
    assert audit(words[job + 1 :], tmp_path).late_ms == 5_000


class _FailError(Exception):
    """Replaces Airflow's exception, after which a task is not retried."""


@pytest.fixture
def dag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The DAG's module, with stand-ins for the parts of Airflow that it imports: tests do not install Airflow."""
    tasks: list[dict[str, Any]] = []

    def task(**given: Any) -> Any:
        return lambda function: lambda topic: tasks.append({**given, "topic": topic, "function": function})

    names: dict[str, dict[str, Any]] = {
        "airflow": {},
        "airflow.sdk.exceptions": {"AirflowFailException": _FailError},
        "airflow.sdk": {"dag": lambda **_: lambda function: function, "task": task},
    }
    for name, members in names.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("TIMER_BRIDGE", str(tmp_path / "timer-bridge"))
    spec = importlib.util.spec_from_file_location("airflow_dag", HERE / "airflow_dag.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["tasks"] = tasks
    return module


def test_the_dag_audits_each_timer_topic_by_itself(dag: ModuleType, tmp_path: Path) -> None:
    assert [task["topic"] for task in dag.tasks] == [*dag.TIMER_TOPICS]
    assert len({task["task_id"] for task in dag.tasks}) == len(dag.tasks)
    folders = set()
    for topic in dag.TIMER_TOPICS:
        found = audit(dag.command(topic)[1:], tmp_path)
        assert (found.timer_topic, found.daily) == (topic, True)
        folders.add(found.out)
    assert len(folders) == len(dag.tasks)


@pytest.mark.parametrize(("code", "raised"), [(0, None), (1, RuntimeError), (2, RuntimeError), (3, _FailError)])
def test_a_fault_is_not_tried_again_and_trouble_is(
    dag: ModuleType, tmp_path: Path, code: int, raised: type[Exception] | None
) -> None:
    (tmp_path / "timer-bridge").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "timer-bridge").chmod(0o755)
    if raised is None:
        dag.audit("timer.requests")
    else:
        with pytest.raises(raised, match=r"timer\.requests"):
            dag.audit("timer.requests")


def test_the_notebook_is_one_without_outputs() -> None:
    """Its cells are executed in spark_jobs/report/tests/test_notebook.py."""
    told = json.loads((HERE / "lateness.ipynb").read_text())
    assert (told["nbformat"], told["nbformat_minor"]) == (4, 5)
    assert not any(cell.get("outputs") for cell in told["cells"])
