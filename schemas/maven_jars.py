"""Jars from Maven Central, fetched once into a cache, by the Ivy that PySpark ships: no Maven, no distribution.

    a file of jars and their SHA-512 -> Ivy -> <cache>/<version-digest>/*.jar

A list is spelled out, and POMs are not followed, for three reasons: every run gets the same bytes; the jars come in
10 s instead of 40; and Ivy's `-types jar` would leave out what POMs call bundles (scala-logging, snappy-java, ...).
Each call checks the SHA-512 of every jar, freshly fetched or from the cache, before it returns the folder.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kafka_timer.errors import BridgeError

_ARCHIVE_OPTIONS = ("-Xlog:cds*=off", "-XX:+DisplayVMOutputToStderr")
"""No word about an archive that does not fit: Java goes on without it. Its own output is not for our stdout."""
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_IVY_MODULE = """<ivy-module version="2.0">
  <info organisation="local" module="jars"/>
  <dependencies defaultconfmapping="*->default">{dependencies}</dependencies>
</ivy-module>
"""


class JarsError(BridgeError):
    """The jars are missing and could not be fetched, or differ from the pinned ones. The message says what to do."""


class JarList(NamedTuple):
    """of: the product with these jars. file: a line for each jar, organisation:name:version and its SHA-512 in hex."""

    of: str
    version: str
    file: Path

    @property
    def sha512(self) -> Mapping[str, str]:
        """Return the SHA-512 of each jar, by organisation:name:version."""
        lines = self.file.read_text().splitlines()
        words = [line.split() for line in lines if not line.startswith("#")]
        return {jar: next(iter(pinned), "not pinned") for jar, *pinned in words}

    def folder(self, cache: Path) -> Path:
        digest = hashlib.sha256("\n".join(self.sha512).encode()).hexdigest()[:8]
        return cache / f"{self.version}-{digest}"


def file_name(jar: str) -> str:
    _, name, version = jar.split(":")
    return f"{name}-{version}.jar"


def ensure(asked: JarList, cache: Path, *, java: str = "java") -> Path:
    """Return the folder with exactly these jars, fetched if they are missing. Raises JarsError.

    A folder under its final name is complete: it is filled under another name and then renamed. If several processes
    call this at once, one fetches and the others wait for its lock.
    """
    folder = asked.folder(cache)
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache.resolve()) as work:
                    arrived = fetch_unchecked(asked, Path(work), folder, java)
                    _check(arrived, asked)
                    arrived.rename(folder)
    _check(folder, asked)
    return folder


def archive_options(folder: Path, classpath: str, java: str, *, writes: bool = True) -> tuple[str, ...]:
    """Return the JVM options for an archive of loaded classes in `folder`: with it a JVM starts in half of the time.

    The first JVM with these options writes it when it ends, its header last. Java ignores an archive of another class
    path. writes: False if this JVM loads too few classes.
    """
    found = shutil.which(java)
    if found is None:
        return ()
    runtime = Path(found).resolve()
    digest = hashlib.sha256(f"{runtime} {runtime.stat().st_mtime_ns} {classpath}".encode()).hexdigest()[:8]
    archive = folder / f"classes-{digest}.jsa"
    if archive.is_file():
        with archive.open("rb") as file:
            if file.read(1) not in (b"", b"\0"):
                return (*_ARCHIVE_OPTIONS, f"-XX:SharedArchiveFile={archive}")
    may_write = writes and os.access(folder, os.W_OK)
    return (*_ARCHIVE_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}") if may_write else ()


def _check(folder: Path, asked: JarList) -> None:
    wanted = {file_name(jar): sha512 for jar, sha512 in asked.sha512.items()}
    remedy = f"delete {folder} and run it again; if they differ again, do not use jars from this network"
    there = {path.name for path in folder.glob("*.jar")}
    if there != wanted.keys():
        odd = ", ".join(sorted(there ^ wanted.keys()))
        raise JarsError(f"{asked.of}'s jars in {folder}: {asked.file.name} and the folder differ in {odd}; {remedy}")
    for name, sha512 in wanted.items():
        with (folder / name).open("rb") as jar:
            actual = hashlib.file_digest(jar, "sha512").hexdigest()
        if actual != sha512:
            raise JarsError(f"{folder / name}: SHA-512 is {actual}, expected {sha512}; {remedy}")


def fetch_unchecked(asked: JarList, work: Path, folder: Path, java: str) -> Path:
    """Fetch the jars into a folder in `work`, check only their number. folder: their final place, for errors."""
    by_hand = f"put the jars that {asked.file} lists, as NAME-VERSION.jar, into {folder}"
    spec = importlib.util.find_spec("pyspark")  # found, not imported: that would take a second
    places = spec.submodule_search_locations or [] if spec else []
    ivy = next((jar for place in places for jar in sorted(Path(place, "jars").glob("ivy-*.jar"))), None)
    if ivy is None:
        raise JarsError(
            f"{asked.of}'s jars are fetched with the Ivy that PySpark ships, and PySpark is not installed: "
            f"pip install 'kafka-timer-bridge[spark]', or {by_hand}"
        )
    _run_ivy(java, ivy, work, asked)
    arrived, wanted = work / "jars", len(asked.sha512)
    count = len(list(arrived.glob("*.jar")))
    if count != wanted:
        raise JarsError(f"fetched {count} of {wanted} jars; run it again, or {by_hand}")
    return arrived


def _run_ivy(java: str, ivy: Path, work: Path, asked: JarList) -> None:
    dependency = '<dependency org="{}" name="{}" rev="{}" transitive="false"/>'
    dependencies = "".join(dependency.format(*jar.split(":")) for jar in asked.sha512)
    (work / "ivysettings.xml").write_text(_IVY_SETTINGS.format(cache=work / "ivy"))
    (work / "ivy.xml").write_text(_IVY_MODULE.format(dependencies=dependencies))
    command = [java, "-jar", str(ivy), "-settings", str(work / "ivysettings.xml"), "-ivy", str(work / "ivy.xml")]
    command += ["-confs", "default", "-types", "jar", "-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"]
    log = work / "ivy.log"
    with log.open("w") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise JarsError(f"Ivy could not fetch {asked.of}'s jars (exit code {code}); its last lines:\n{tail}")
