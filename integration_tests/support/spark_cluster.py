"""A standalone Spark cluster of one's own on loopback: a master and two workers of one core, ended by their pids.

with SparkCluster(folder) as cluster:
    cluster.submit("audit", "--out", ...)      spark-submit as people run it
    cluster.master                             spark://127.0.0.1:27077, for --master
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pyspark

from bridge.child_process import ChildProcess
from bridge.dev.embedded_kafka import HOST, free_port
from integration_tests.support.patience import PATIENCE_S
from spark_jobs import package
from spark_jobs.platform.session import KAFKA_PACKAGE

SPARK_HOME = Path(pyspark.__path__[0])
WORKERS = 2
SETTINGS = (
    f"spark.driver.host={HOST}",
    f"spark.driver.bindAddress={HOST}",
    "spark.executor.memory=512m",
    "spark.ui.enabled=false",
)


class SparkCluster:
    """The logs of its processes are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._processes = free_port(), list[ChildProcess]()
        self.master = f"spark://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write_python()
        pages = ["--host", HOST, "--webui-port"]
        address = [*pages, str(free_port()), "--port", str(self._port)]
        self._start("master", b"I have been elected leader", "org.apache.spark.deploy.master.Master", *address)
        for number in range(WORKERS):
            size = [*pages, str(free_port()), "--cores", "1", "--memory", "700m"]
            words = ["org.apache.spark.deploy.worker.Worker", *size, "--work-dir", str(self._folder / f"work-{number}")]
            self._start(f"worker-{number}", b"Successfully registered with master", *words, self.master)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.end(PATIENCE_S)

    def submit(self, *words: str, settings: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
        """Run spark-submit with the jobs as `spark_jobs.package` writes them, without our other packages."""
        jobs = self._folder / "jobs"
        assert package.main([str(jobs)]) == 0
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master, "--packages", KAFKA_PACKAGE]
        for setting in (*SETTINGS, *settings):
            command += ["--conf", setting]
        command += ["--py-files", str(jobs / "timer-bridge.zip"), str(jobs / "timer-bridge-job.py"), *words]
        given = self.environment
        return subprocess.run(command, cwd=self._folder, env=given, capture_output=True, text=True, check=False)

    def executors(self) -> int:
        """Return the number of workers on which the last application ran."""
        return sum(any(self._folder.glob(f"work-{number}/*/*")) for number in range(WORKERS))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of spark-submit and of the workers."""
        ours = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": str(self._folder / "python")}
        ours["SPARK_PRINT_LAUNCH_COMMAND"] = "1"
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ours

    def _write_python(self) -> None:
        """Write a Python with all but our packages: -S leaves out those of an editable install."""
        wrapper = self._folder / "python"
        packages = sysconfig.get_path("purelib")
        wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
        wrapper.chmod(0o755)

    def _start(self, name: str, ready_line: bytes, *words: str) -> None:
        given = [f"{key}={value}" for key, value in (self.environment | {"SPARK_DAEMON_MEMORY": "256m"}).items()]
        command = ["env", "--ignore-environment", *given, str(SPARK_HOME / "bin" / "spark-class"), *words]
        process = ChildProcess(command, self._folder / name, ready_line)
        self._processes.append(process)
        process.ready_or_ended.wait(PATIENCE_S)
        assert process.ready, f"{name} did not start: {self._folder / name}"
