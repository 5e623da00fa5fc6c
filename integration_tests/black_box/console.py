"""Kafka's console producer and console consumer, which are in Java, without a distribution of Kafka.

Their jars come from Maven Central by the Ivy that PySpark ships, and are checked against `console-jars.txt`.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .processes import PATIENCE_S

_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{folder}/ivy"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_IVY_MODULE = """<ivy-module version="2.0">
  <info organisation="local" module="console"/>
  <dependencies defaultconfmapping="*->default">{jars}</dependencies>
</ivy-module>
"""
_READER = ("parse.headers=true", "parse.key=true", "null.marker=NULL")
_FORMATTER = ("print.timestamp=true", "print.headers=true", "print.key=true")


class NoConsoleError(Exception):
    """Java or the jars are missing."""


def fetched(cache: Path) -> list[Path]:
    """Return the jars, fetched into a folder of `cache` if they are not there. Raises NoConsoleError."""
    if shutil.which("java") is None:
        raise NoConsoleError("java is not installed")
    text = Path(__file__).with_name("console-jars.txt").read_text()
    pinned = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    folder = cache / f"console-jars-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other tests may fetch at the same time
        if not folder.exists():
            _fetch(list(pinned), folder)
    jars = {folder / "{1}-{2}.jar".format(*jar.split(":")): sha512 for jar, sha512 in pinned.items()}
    for jar, sha512 in jars.items():
        actual = hashlib.sha512(jar.read_bytes()).hexdigest()
        assert actual == sha512, f"{jar}: sha512 {actual}, pinned is {sha512}; delete its folder and run again"
    return list(jars)


def _fetch(jars: list[str], folder: Path) -> None:
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    ivy = next((jar for place in places for jar in Path(place, "jars").glob("ivy-*.jar")), None)
    if ivy is None:
        raise NoConsoleError("PySpark is not installed, and its Ivy fetches the jars")
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        work = Path(made)
        wanted = (
            '<dependency org="{}" name="{}" rev="{}" transitive="false"/>'.format(*jar.split(":")) for jar in jars
        )
        (work / "settings.xml").write_text(_IVY_SETTINGS.format(folder=work))
        (work / "ivy.xml").write_text(_IVY_MODULE.format(jars="".join(wanted)))
        command = ["java", "-jar", str(ivy), "-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")]
        command += ["-confs", "default", "-types", "jar", "-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NoConsoleError(f"Ivy could not fetch the jars:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        (work / "jars").rename(folder)


class Console:
    def __init__(self, servers: str, jars: list[Path]) -> None:
        self._servers = servers
        self._java = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, jars))]

    def produce(self, topic: str, *records: tuple[str, str, str]) -> None:
        """Send records of headers (`name:value,name:value`), key and value. `NULL` is null."""
        lines = "".join("\t".join(record) + "\n" for record in records)
        properties = [word for each in _READER for word in ("--reader-property", each)]
        self._run("org.apache.kafka.tools.ConsoleProducer", "--topic", topic, *properties, text=lines)

    def consume(self, topic: str, count: int) -> list[list[str]]:
        """Return the first `count` committed records: `LogAppendTime:ms`, headers, key, value."""
        properties = [word for each in _FORMATTER for word in ("--formatter-property", each)]
        options = ["--from-beginning", "--isolation-level", "read_committed", "--max-messages", str(count)]
        consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        said = self._run(consumer, "--topic", topic, *options, *properties)
        return [line.split("\t") for line in said.splitlines()]

    def _run(self, tool: str, *arguments: str, text: str = "") -> str:
        command = [*self._java, tool, "--bootstrap-server", self._servers, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
