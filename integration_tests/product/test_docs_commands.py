"""Commands, options, settings and targets of make that the docs show: they are there, read as they are meant, and run.

timer-bridge pause orders           TimerProducer.pause("orders")       a line, and what is said of it
timer-bridge archive --config bridge.toml --out /archive [--follow]     what may be left out, in brackets
"""

import contextlib
import io
import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.exceptions import Exit
from typer.main import get_command
from typer.testing import CliRunner, Result

from bridge.cli.app import app
from bridge.config.settings import Settings, load
from bridge.config.target_settings import TargetSettings
from bridge.config.topic_settings import TopicSettings
from bridge.dev.embedded_kafka import free_port
from bridge.testing.fake_kafka import FakeKafka, Timeline
from bridge.tests.simulation.http_fakes import MemoryOutbox
from bridge.tests.test_client import Message
from integration_tests.bridge.test_run import Names
from integration_tests.conftest import ROOT, Broker
from integration_tests.product.test_docs import DOCS
from integration_tests.support.patience import until
from kafka_timer import producer
from schemas.kafka_settings import PREFIX
from schemas.tables import REQUESTS
from scripts.common.kafka_io import BROKER_CLOCK, Admin
from scripts.common.processes import BridgeProcess
from spark_jobs import archive
from spark_jobs.audit_run import arguments as audit_arguments
from spark_jobs.backfill import job as backfill
from spark_jobs.importer import job as bulk_import

EACH_PAGE = pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
OF_SPARK = {
    "audit": audit_arguments.parse,
    "backfill": backfill.parse,
    "archive": archive.parse,
    "import": bulk_import.parse,
}
OF_OTHERS = {"--bootstrap-server", "--alter", "--delete-offsets", "--partitions", "--delete", "--file", "--build"}
"""Options of Kafka's own tools, and of docker."""
OF_OTHERS |= {"--archives", "--only", "--full", "--repeat", "--requests", "--pending", "--add", "--quick", "--disk"}
OF_OTHERS |= {"--release", "--conf", "--deploy-mode", "--recurring"}
"""Options of spark-submit and of the benchmark scripts."""
OF_OTHERS |= {"--describe", "--under-min-isr-partitions", "--signal", "--deep-iteration", "--files"}
"""Options of Kafka's own tools and of docker."""
OF_OTHERS |= {"--sign", "--no-deps", "--require-hashes", "--upgrade", "--build-arg", "--packages"}
"""Options of git, pip, uv, docker and spark-submit."""
OF_OTHERS |= {"--set", "--skip-schema-validation", "--patch", "--cascade"}
"""Options of helm and kubectl."""


class Shown(NamedTuple):
    page: str
    words: list[str]

    @property
    def text(self) -> str:
        return " ".join(self.words)


def commands_in(page: Path) -> Iterator[Shown]:
    """Lines of their own that begin with timer-bridge."""
    for line in page.read_text().splitlines():
        shown = re.match(r"    (?:\$ |\S*/)?timer-bridge (?!is ready)(.+)", line)
        if shown is not None:
            asked = re.split(r"  +| #| &$", shown[1])[0]
            yield Shown(page.name, shlex.split(re.sub(r"[\[\]]", "", asked)))


@cache
def typer_commands() -> dict[str, Any]:
    commands: Any = get_command(app)
    return {name: commands.get_command(None, name) for name in commands.list_commands(None)}


@cache
def options_of(name: str) -> set[str]:
    if name not in OF_SPARK:
        return {each for option in typer_commands()[name].params for each in option.opts}
    told = io.StringIO()
    with contextlib.redirect_stdout(told), pytest.raises(SystemExit):
        OF_SPARK[name](["--help"], {})
    return set(re.findall(r"--[a-z][a-z-]*", told.getvalue()))


@cache
def all_options() -> set[str]:
    return {"--version", "--help", "--install-completion"}.union(*(options_of(name) for name in typer_commands()))


@EACH_PAGE
def test_a_command_of_the_docs_parses_with_its_options(page: Path, tmp_path: Path) -> None:
    (tmp_path / "bridge.toml").write_text('bootstrap_servers = "nowhere:1"')
    (tmp_path / "audits" / "orders" / REQUESTS.name).mkdir(parents=True)
    (tmp_path / "audits" / "waivers.csv").write_text("origin,reason,until\n")
    named = ("bridge.toml", "/audits/orders", "/audits/waivers.csv")
    there = {"N": "1"} | {name: str(tmp_path / name.lstrip("/")) for name in named}
    for shown in commands_in(page):
        name, *given = (there.get(word, word) for word in shown.words)
        if name in OF_SPARK:
            OF_SPARK[name](given, {f"{PREFIX}BOOTSTRAP_SERVERS": "nowhere:1"})
        elif name != "--version":
            with contextlib.suppress(Exit):
                typer_commands()[name].make_context(name, given)


@EACH_PAGE
def test_commands_and_options_that_the_text_names_exist(page: Path) -> None:
    text = page.read_text()
    for name, rest in re.findall(r"`timer-bridge ([a-z][a-z-]*)([^`]*)`", text):
        assert name in typer_commands(), name
        assert set(re.findall(r"(?<=\s)--[a-z][a-z-]*", rest)) <= options_of(name), f"{name}{rest}"
    named = re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(re.findall(r"`([^`\n]*)`", text)))
    assert set(named) <= all_options() | OF_OTHERS


@EACH_PAGE
def test_targets_of_make_and_modules_that_are_run_exist(page: Path) -> None:
    for module in re.findall(r"python -m ([a-z_.]+)", page.read_text()):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists() or module == "pytest", module
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= targets


def tables_in(page: Path) -> Iterator[str]:
    """Blocks of TOML."""
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", page.read_text(), re.MULTILINE):
        lines = [line.removeprefix("    ") for line in block.splitlines()]
        is_toml = [bool(re.match(r"[a-z_.]+ = |\[\w", line)) for line in lines]
        if any(is_toml):
            begin, end = is_toml.index(True), len(lines) - is_toml[::-1].index(True)
            yield "\n".join(lines[begin:end])


@EACH_PAGE
def test_settings_that_are_shown_are_taken(page: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    for text in tables_in(page):
        file = tmp_path / "bridge.toml"
        file.write_text(re.sub(r'"file:[^"]*"', f'"file:{secret}"', text))
        load({"bootstrap_servers": "nowhere:1"}, {}, file)


@EACH_PAGE
def test_settings_that_the_text_names_exist(page: Path) -> None:
    if page.name == "formats.md":  # of bytes
        return
    known = Settings.model_fields.keys() | TopicSettings.model_fields.keys() | TargetSettings.model_fields.keys()
    text = page.read_text()
    for name in re.findall(r"`([a-z][a-z_]+) = [^`]*`", text):
        assert name in known, name
    for name in re.findall(rf"{PREFIX}([A-Z_]+)", text):
        assert name.startswith("KAFKA_") or name.lower() in Settings.model_fields, name


# -- they run

NOT_HERE = {
    "HOST:": "a cluster of one's own",
    "http://a:": "machines of one's own",
    "run --workers ": "tests of its own",
    **{f"timer-bridge {name} ": "Spark, with tests of its own" for name in OF_SPARK},
}
RUNNING = ("page.md", "timer-topics.md", "headers.md")
"""Pages whose commands need a running bridge, which the first command starts."""
STOPPED = re.compile(r"verify|export|run --adopt|.*--data-dir")


def to_be_run(*pages: str) -> list[Shown]:
    found = [shown for page in pages for shown in commands_in(ROOT / "docs" / page)]
    return [shown for shown in found if not any(each in f"timer-bridge {shown.text} " for each in NOT_HERE)]


class Here(NamedTuple):
    """The commands in this process, with our port and real topic."""

    port: str
    target: str

    def ended(self, *given: str) -> Result:
        words = [word.replace("8321", self.port).replace("orders", self.target) for word in given]
        return CliRunner().invoke(app, words)

    def run(self, *given: str) -> None:
        ended = self.ended(*given)
        assert ended.exit_code == 0, f"{' '.join(given)}: {ended.output}{ended.exception}"

    def until(self, *given: str) -> None:
        """Repeat until it succeeds, as the bridge reads requests a moment later."""
        until(lambda: self.ended(*given).exit_code == 0, " ".join(given))


@pytest.mark.broker
def test_commands_of_the_docs_work(kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run in this process, first with a running bridge, then with a stopped one."""
    names, port = Names(), str(free_port())
    told = dict(pairwise(names.arguments))
    for option in (
        "--group",
        "--timer-topic",
        "--rejected-topic",
        "--journal-topic",
        "--receipts-topic",
        "--control-topic",
    ):
        monkeypatch.setenv(f"{PREFIX}{option.removeprefix('--').replace('-', '_').upper()}", told[option])
    monkeypatch.setenv(f"{PREFIX}BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    monkeypatch.setenv(f"{PREFIX}REDRIVEN_TOPIC", f"redriven-{names.timers}")
    monkeypatch.chdir(tmp_path)
    Admin(kafka.bootstrap_servers).create_topics([names.target], partitions=1, settings=BROKER_CLOCK)

    here = Here(port, names.target)
    start, *others = to_be_run(*RUNNING, "operations.md")
    running = [shown for shown in others if not STOPPED.match(shown.text)]
    stopped = [shown for shown in others if shown not in running]
    assert start.words[0] == "run"
    assert (len(running), len(stopped)) == (19, 5), "as many as the pages show"
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, [each.replace("8321", port) for each in start.words[1:]]):
        for number in range(4):
            here.run("send", "orders", "v", "--in", "2h", "--id", f"id-{number}", "-H", f"tenant={'ab'[number % 2]}")
        for number in range(4):
            here.until("pending", "--http-port", "8321", "--id", f"id-{number}")
        for shown in running:
            if "reminder-7" in shown.words:
                here.run("send", "orders", "v", "--in", "2h", "--id", "reminder-7")
                here.until("pending", "--http-port", "8321", "--id", "reminder-7")
            here.run(*(word.replace("timer.requests/", f"{names.timers}/") for word in shown.words))
    for shown in stopped:
        if shown.words[0] == "run":
            with BridgeProcess(tmp_path, kafka.bootstrap_servers, shown.words[1:]):
                pass
        else:
            here.run(*shown.words)


def test_the_client_of_the_readme_does_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = FakeKafka(Timeline())
    kafka.create("timer.requests", 4)
    monkeypatch.setattr(producer, "_kafka", lambda _: MemoryOutbox(kafka))
    blocks = re.findall(r"((?:^    .*\n)+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    (shown,) = (textwrap.dedent(block) for block in blocks if "TimerProducer(" in block)
    exec(shown, {"message": Message(kafka.produce("timer.requests", b"not handled"))})
    ids = [dict(entry.headers).get("timer-id") for entry in kafka.read("timer.requests")]
    assert (len(ids), ids.count(b"reminder-7"), sum(b"retry/billing/" in (each or b"") for each in ids)) == (4, 2, 1)
