"""The tests of this folder import no internal module."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent
_ALLOWED = sys.stdlib_module_names | {"confluent_kafka", "pytest"}
_CLIENT = "kafka_timer"


def forbidden(code: str) -> Iterator[str]:
    """Yield the modules that the code imports, other than the allowed ones and those of this folder."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                found = [each.name for each in names]
            case ast.ImportFrom(module=module, level=level):
                found = ["." * level + (module or "")]
            case _:
                continue
        yield from (each for each in found if not _is_allowed(each))


def _is_allowed(module: str) -> bool:
    if module.startswith("."):
        return not module.startswith("..")
    return module == _CLIENT or module.split(".")[0] in _ALLOWED


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("**/*.py")), ids=lambda path: path.name)
def test_a_file_imports_no_internal_module_but_the_client(path: Path) -> None:
    assert list(forbidden(path.read_text())) == []


def test_a_forbidden_import_is_found_in_each_form() -> None:
    code = (
        "import json, bridge.loop.loop\nfrom bridge import client\nfrom kafka_timer import TimerProducer\n"
        "from confluent_kafka.admin import AdminClient\nfrom .history import History\nfrom ..cluster import Cluster\n"
        "def late():\n    from timer.store import Store\n    import scripts\n"
    )
    assert sorted(forbidden(code)) == ["..cluster", "bridge", "bridge.loop.loop", "scripts", "timer.store"]
