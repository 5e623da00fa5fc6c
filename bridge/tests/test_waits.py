"""Every wait has a limit: a call that waits for another thread, a process or a broker names its longest time."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("bridge", "timer", "schemas", "kafka_timer", "scripts", "spark_jobs")
NOT_PRODUCT = ("tests", "testing", "fake_kafka.py", "timer_world.py")
WAITS = frozenset({"result", "join", "wait", "get", "communicate", "acquire", "urlopen"})
"""Without an argument they wait for ever. `urlopen` needs its keyword."""
ADMIN_CALLS = re.compile("(create|delete|describe|list|alter|incremental_alter)_[a-z_]+")
"""Methods of AdminClient. Without request_timeout they take librdkafka's 60 s; list_topics has a timeout instead."""
EXCEPTIONS = {
    r"sink.py: self\.outcome\.result|commit_pipeline.py: flown\.submitted\.wait": "it ends by its own time-outs",
    r"(start_(replace|sync)\(.*\)|replacing|syncing)\.wait|timer/disk.py: self\.future\.result": "fsync ends or fails",
    r"retry.py: self\._tasks\.get|cli/app.py: ended\.wait": "waits for work, or for a signal",
    r"(_commands?|producer|actions)\.py: (self\.)?(each|sent|sent\[0\]|replaced)\.result": "delivery.timeout.ms",
    r"consumer.py: self\._pace\.wait|timer/schedule/.*\.wait|page/.*: (progress|started\.task)\.result": "no wait",
}
"""Pattern of `path: call`, and the reason."""


def unlimited(source: str) -> Iterator[str]:
    """Yield each call in `source` that may wait for ever. An awaited call is not one: an event loop can cancel it."""
    tree = ast.parse(source)
    awaited = {id(each) for node in ast.walk(tree) if isinstance(node, ast.Await) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in awaited:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg for keyword in node.keywords}
        is_admins = "admin" in ast.unparse(node.func).lower() or "self._client." in ast.unparse(node.func)
        is_endless = name in WAITS and not given and (not node.args or name == "urlopen")
        is_long = is_admins and ADMIN_CALLS.fullmatch(name) and not given & {"request_timeout", "timeout", "partitions"}
        if is_endless or is_long:
            yield ast.unparse(node)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_wait_is_without_a_limit(package: str) -> None:
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        if not set(path.parts) & set(NOT_PRODUCT):
            found += [f"{path.relative_to(ROOT)}: {call}" for call in unlimited(path.read_text())]
    assert [each for each in found if not any(re.search(pattern, each) for pattern in EXCEPTIONS)] == []


def test_a_wait_is_found() -> None:
    source = "a.result()\nb.join(1)\nawait c.wait()\nself._admin.create_topics([d])\ne.get('f')\nurlopen(g)\n"
    assert list(unlimited(source)) == ["a.result()", "self._admin.create_topics([d])", "urlopen(g)"]
