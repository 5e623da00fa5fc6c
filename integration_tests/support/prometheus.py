"""A Prometheus of its own for a test, on loopback, with the rules of compose/.

with Prometheus(folder, {"127.0.0.1:8321"}) as prometheus:
    prometheus.query("sum(up)")                       [({}, 1.0)]
"""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from shutil import which
from typing import Any, Self

from bridge.child_process import start_child
from bridge.dev.embedded_kafka import HOST, free_port
from integration_tests.conftest import ROOT, missing
from integration_tests.support.patience import PATIENCE_S, until

RULES = ROOT / "compose" / "prometheus" / "alerts.yaml"
BOARDS = sorted((ROOT / "charts" / "timer-bridge" / "dashboards").glob("*.json"))


def tool(name: str) -> str:
    return which(name) or missing(f"{name} is not installed; on Debian: apt-get install prometheus")


def promtool(*arguments: str, told: str = "") -> str:
    """Run promtool and return its output. Fail unless it ends with 0."""
    command = [tool("promtool"), *arguments]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """Asks each of `targets` (host:port) every second, as the job `timer-bridge`."""

    def __init__(self, folder: Path, targets: Iterable[str]) -> None:
        self._folder = folder
        self._config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "timer-bridge", "static_configs": [{"targets": sorted(targets)}]}],
        }
        self._address = f"{HOST}:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._moment: dict[str, str] = {}

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each sample, as of now or of the time of `hold`."""
        told = self.ask("query", query=expression, **self._moment)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in told]

    def hold(self, targets: int) -> None:
        """Let `query` answer as of a moment at which all targets had answered.

        A target that takes longer than the second between two scrapes, as on a busy machine, is missing meanwhile.
        The samples of a scrape have the time of its beginning.
        """

        def look() -> bool:
            self._moment = {"time": f"{time.time():.3f}"}
            time.sleep(2)
            return self.query("sum(up)") == [({}, targets)]

        until(look, f"a moment with {targets} targets")

    def ask(self, what: str, **given: str) -> Any:
        try:
            with urllib.request.urlopen(self._url(what, given), timeout=PATIENCE_S) as answer:  # noqa: S310  (our own)
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{given}: {refused.read().decode()}") from refused

    def __enter__(self) -> Self:
        config = self._folder / "prometheus.json"
        config.write_text(json.dumps(self._config))  # JSON is YAML
        command = [tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={self._folder / 'tsdb'}"]
        command.append(f"--web.listen-address={self._address}")
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = start_child(command, stdout=log, stderr=log)
        until(self._is_ready, "a Prometheus that is ready")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self._folder / "prometheus.log").read_text()[-2000:])
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _url(self, what: str, given: dict[str, str]) -> str:
        return f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(given)}"
