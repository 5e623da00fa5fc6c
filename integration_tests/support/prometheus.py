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

from bridge.child_process import ChildProcess
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
        url = f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(given)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{given}: {refused.read().decode()}") from refused

    def __enter__(self) -> Self:
        config = self._folder / "prometheus.json"
        config.write_text(json.dumps(self._config))  # JSON is YAML
        command = [tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={self._folder / 'tsdb'}"]
        command.append(f"--web.listen-address={self._address}")
        self._process = ChildProcess(command, self._folder, b"Server is ready to receive web requests")
        self._process.ready_or_ended.wait(PATIENCE_S)
        assert self._process.ready, (self._folder / "logs" / "console.log").read_text()[-2000:]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end(PATIENCE_S)
