"""requirements/*.lock and the lists of jars pin every package and jar with its hash."""

import re
import tomllib
from functools import cache
from typing import Any

import pytest

from integration_tests.conftest import ROOT
from schemas.maven_jars import JarList, file_name
from scripts.release.pin_jars import LISTS

EXTRAS = ("page", "rocksdb", "export", "registry", "spark")
FILES = ("build", "run", *EXTRAS, "dev", "docs", "proof")


@cache
def locked(file: str) -> dict[str, list[str]]:
    """Return the hashes of each package."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "requirements" / f"{file}.lock").read_text().splitlines():
        if pinned := re.fullmatch(r"([a-z0-9-]+)==[\w.]+( ; .+)? \\", line):
            found[pinned[1]] = []
        elif hashed := re.fullmatch(r" +--hash=sha256:([0-9a-f]{64})( \\)?", line):
            found[next(reversed(found))].append(hashed[1])
        else:
            assert line.startswith("#"), line
    return found


def project(file: str = "pyproject.toml") -> dict[str, Any]:
    return tomllib.loads((ROOT / file).read_text())


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9._-]", each)[0].lower() for each in requirements}


@pytest.mark.parametrize("file", FILES)
def test_every_package_has_hashes_and_no_file_names_an_index(file: str) -> None:
    assert locked(file)
    assert [name for name, hashes in locked(file).items() if not hashes] == []
    assert "://" not in (ROOT / "requirements" / f"{file}.lock").read_text()


def test_each_package_is_pinned_once() -> None:
    all_ = [name for file in FILES for name in locked(file)]
    assert len(all_) == len(set(all_))


def test_every_requirement_of_pyproject_is_locked() -> None:
    """If it fails after a new dependency, run `make lock`."""
    told, client = project(), project("kafka_timer/pyproject.toml")["project"]
    extras = told["project"]["optional-dependencies"]
    so_far: set[str] = set()
    for file, wanted in {
        "build": told["build-system"]["requires"],
        "run": [*told["project"]["dependencies"], *client["dependencies"]],
        **{extra: extras[extra] for extra in EXTRAS},
        "dev": [*extras["dev"], *client["optional-dependencies"]["testing"]],
        "docs": extras["docs"],
        "proof": extras["proof"],
    }.items():
        so_far |= locked(file).keys()
        assert names(wanted) - {client["name"]} <= so_far, f"{file}: make lock"


def test_only_our_packages_are_installed_without_a_hash() -> None:
    for file in ("Makefile", "compose/bridge/Dockerfile", "scripts/lock.sh"):
        text = re.sub(r"^INSTALL :=.*\n", "", (ROOT / file).read_text(), flags=re.MULTILINE)
        text = text.replace("\\\n", " ").replace("$(INSTALL)", "pip install")
        for command in re.findall(r"\bpip install (.*?)(?: && |\n)", text):
            assert "--require-hashes" in command or "--no-deps" in command, command
        assert "PIP_CONSTRAINT" not in text


@pytest.mark.parametrize("asked", LISTS, ids=lambda asked: asked.of)
def test_every_jar_is_pinned_once(asked: JarList) -> None:
    names = [jar.rsplit(":", 1)[0] for jar in asked.sha512]
    assert len(set(names)) == len(names) == len(set(map(file_name, asked.sha512)))
    assert all(jar.count(":") == 2 for jar in asked.sha512)
    assert all(re.fullmatch("[0-9a-f]{128}", each) for each in asked.sha512.values())
    assert any(jar.endswith(f":{asked.version}") for jar in asked.sha512)
