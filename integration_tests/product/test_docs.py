"""The quick start works, links lead somewhere, and what pages show is read by the real parsers.

The lines `$ ...` of the quick start are executed in order, in one shell:

    $ timer-bridge run &              in the background; the next line waits until it says that it is ready
    timer-bridge is ready: ...        the expected output; `...` is anything

Ports are replaced, so that several run at a time.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.exceptions import Exit
from typer.main import get_command

from bridge.child_process import kill_with_parent
from bridge.cli.app import app
from bridge.config.settings import load
from bridge.dev.embedded_kafka import free_port
from integration_tests.conftest import JARS_CACHE, ROOT, kafka_jars
from integration_tests.support.patience import PATIENCE_S

PROMPT = "    $ "
IN_THE_BACKGROUND = """
await_ready() {
    for _ in $(seq 2000); do
        grep -q ready "$1" && return 0
        kill -0 "$2" 2> /dev/null || break
        sleep 0.1
    done
    cat "$1" >&2
    return 1
}
"""


class Step(NamedTuple):
    command: str
    said: list[str]


def steps(text: str) -> list[Step]:
    found: list[Step] = []
    is_open = False
    for line in text.splitlines():
        if line.startswith(PROMPT):
            found.append(Step(line.removeprefix(PROMPT), []))
            is_open = True
        elif line.startswith("    ") and is_open:
            found[-1].said.append(line.strip())
        else:
            is_open = False
    return found


def script(asked: list[Step]) -> str:
    """Return a script that writes the output of each step to a file of its own: 0, 1, ..."""
    lines = ["set -eu", IN_THE_BACKGROUND]
    for number, (command, _) in enumerate(asked):
        if command.endswith("&"):
            lines += [f"{command.removesuffix('&')} > {number} 2> {number}.log &", f"await_ready {number} $!"]
        else:
            lines.append(f"{command} > {number} 2> {number}.log")
    return "\n".join([*lines, "echo done", ""])


def fits(said: str, wanted: list[str]) -> bool:
    pattern = r"[\s\S]*".join(re.escape(part) for part in "\n".join(wanted).split("..."))
    return re.search(pattern, said) is not None


@pytest.mark.broker
def test_the_quick_start_works(tmp_path: Path) -> None:
    kafka_jars()
    (tmp_path / ".run").mkdir()
    (tmp_path / ".run" / "kafka-jars").symlink_to(JARS_CACHE)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    kafka, http = str(free_port()), str(free_port())
    text = (ROOT / "docs" / "quick-start.md").read_text().replace("9092", kafka).replace("8321", http)
    asked = steps(text.replace("timer-bridge dev", f"timer-bridge dev --port {kafka}"))
    assert asked
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shell = kill_with_parent(["bash", "-c", script(asked)])
    done = subprocess.Popen(shell, cwd=tmp_path, env=environment, start_new_session=True)
    try:
        with suppress(subprocess.TimeoutExpired):
            done.wait(2 * PATIENCE_S)  # for all of them together
    finally:
        with suppress(ProcessLookupError):
            os.killpg(done.pid, signal.SIGTERM)
        done.wait(30)
    told = "\n".join(f"{path}: {path.read_text()}" for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, told
    for number, (command, wanted) in enumerate(asked):
        said = (tmp_path / str(number)).read_text()
        assert fits(said, wanted), f"{command}\n{said}\n{told}"


DOCS = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
EACH_PAGE = pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)


def anchor_of(title: str) -> str:
    """Return the anchor that GitHub makes for a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: those of its headings, and its own `<a id="...">`."""
    text = page.read_text()
    titles = (line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#"))
    return {anchor_of(title) for title in titles}.union(re.findall(r'<a id="([^"]+)"', text))


@EACH_PAGE
def test_links_have_titles_and_lead_somewhere(page: Path) -> None:
    for title, target in re.findall(r"\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
        assert not title.endswith(".md"), target
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_pages_and_headings_that_code_and_messages_name_exist() -> None:
    """docs/formats.md, docs/formats.md#golden-files, and docs/formats.md, "Golden files"."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    sources = [
        ROOT / name for name in listed.splitlines() if re.search(r"\.(py|toml|ya?ml|json|html)$|Makefile$", name)
    ]
    named = [
        (source.name, page, anchor or anchor_of(heading))
        for source in sources
        for page, anchor, heading in re.findall(r'\b(docs/[\w/-]+\.md)(?:#([\w-]+)|, "([^"]+)")?', source.read_text())
    ]
    assert named
    absent = [each for each in named if not (ROOT / each[1]).exists()]
    assert absent == []
    assert [each for each in named if each[2] and each[2] not in anchors(ROOT / each[1])] == []


@EACH_PAGE
def test_commands_and_settings_that_are_shown_parse(page: Path, tmp_path: Path) -> None:
    """An option in brackets may be left out."""
    text = page.read_text()
    commands: Any = get_command(app)
    for line in re.findall(r"^    (?:\$ |\S*/)?timer-bridge (?!is ready)(\w.+)", text, re.MULTILINE):
        name, *given = shlex.split(re.sub(r"[\[\]]", "", re.split(r"  +| #| &$", line)[0]))
        with suppress(Exit):
            commands.get_command(None, name).make_context(name, ["1" if word == "N" else word for word in given])
    (tmp_path / "secret").write_text("x")
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE):
        lines = [line.removeprefix("    ") for line in block.splitlines()]
        is_toml = [bool(re.match(r"[a-z_.]+ = |\[\w", line)) for line in lines]
        if any(is_toml):
            toml = "\n".join(lines[is_toml.index(True) : len(lines) - is_toml[::-1].index(True)])
            (tmp_path / "bridge.toml").write_text(re.sub(r'"file:[^"]*"', f'"file:{tmp_path / "secret"}"', toml))
            load({"bootstrap_servers": "nowhere:1"}, {}, tmp_path / "bridge.toml")


@EACH_PAGE
def test_metrics_that_are_named_exist(page: Path) -> None:
    known = (ROOT / "docs" / "metrics.md").read_text()
    for name in re.findall(r"\btimer_bridge_\w+", page.read_text()):
        assert re.search(rf"\b{name}\b", known), name
