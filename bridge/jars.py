"""Jars from Maven Central, fetched once into a cache, by the Ivy that PySpark ships: no Maven, no distribution.

    a list of jars -> Ivy -> <cache>/<version-digest>/*.jar

A list is spelled out, and POMs are not followed, for three reasons: every run gets the same bytes; the jars come in
10 s instead of 40; and Ivy's `-types jar` would leave out what POMs call bundles (scala-logging, snappy-java, ...).
"""

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from bridge.errors import BridgeError

IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
IVY_MODULE = """<ivy-module version="2.0">
  <info organisation="local" module="jars"/>
  <dependencies defaultconfmapping="*->default">{dependencies}</dependencies>
</ivy-module>
"""


class JarsError(BridgeError):
    """The jars are not there and could not be fetched. The message says what to do."""


class JarList(NamedTuple):
    """`jars` are organisation:name:version; `of` says whose they are."""

    of: str
    version: str
    jars: tuple[str, ...]

    def folder(self, cache: Path) -> Path:
        digest = hashlib.sha256("\n".join(self.jars).encode()).hexdigest()[:8]
        return cache / f"{self.version}-{digest}"


def ensure(asked: JarList, cache: Path, *, java: str = "java") -> Path:
    """The folder with exactly these jars, fetched when missing.

    A folder under its final name is complete: it is filled under another name and then renamed. Of several processes
    that come at once, one fetches and the others wait at the lock.
    """
    folder = asked.folder(cache)
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch_into(folder, asked, java)
    return folder


def _fetch_into(folder: Path, asked: JarList, java: str) -> None:
    work = Path(tempfile.mkdtemp(prefix=".fetching-", dir=folder.parent.resolve()))
    try:
        _run_ivy(java, _find_ivy(folder, asked), work, asked)
        arrived = work / "jars"
        count = len(list(arrived.glob("*.jar")))
        if count != len(asked.jars):
            raise JarsError(f"fetched {count} of {len(asked.jars)} jars; run it again, or {_by_hand(folder, asked)}")
        arrived.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _find_ivy(folder: Path, asked: JarList) -> Path:
    spec = importlib.util.find_spec("pyspark")  # found, not imported: that would take a second
    for place in spec.submodule_search_locations or [] if spec else []:
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise JarsError(
        f"{asked.of}'s jars are fetched with the Ivy that PySpark ships, and PySpark is not installed: "
        f"pip install 'kafka-timer-bridge[spark]', or {_by_hand(folder, asked)}"
    )


def _run_ivy(java: str, ivy: Path, work: Path, asked: JarList) -> None:
    dependency = '<dependency org="{}" name="{}" rev="{}" transitive="false"/>'
    dependencies = "".join(dependency.format(*jar.split(":")) for jar in asked.jars)
    (work / "ivysettings.xml").write_text(IVY_SETTINGS.format(cache=work / "ivy"))
    (work / "ivy.xml").write_text(IVY_MODULE.format(dependencies=dependencies))
    command = [java, "-jar", str(ivy), "-settings", str(work / "ivysettings.xml"), "-ivy", str(work / "ivy.xml")]
    command += ["-confs", "default", "-types", "jar", "-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"]
    log = work / "ivy.log"
    with log.open("w") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise JarsError(f"Ivy could not fetch {asked.of}'s jars (exit code {code}); its last words:\n{tail}")


def _by_hand(folder: Path, asked: JarList) -> str:
    return f"put the jars of a {asked.of} {asked.version} distribution (its lib or libs/*.jar) into {folder}"
