"""Nobody writes another object's attributes: a fact has one owner, which has a method for each change."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bridge.loop
import bridge.partition

PATHS = [path for package in (bridge.loop, bridge.partition) for path in sorted(Path(package.__path__[0]).glob("*.py"))]


def foreign_writes(source: str) -> Iterator[str]:
    """Yield each attribute that `source` assigns or deletes on another object than `self`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and ast.unparse(node.value) != "self":
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_attribute_of_another_object_is_written(path: Path) -> None:
    assert list(foreign_writes(path.read_text())) == []


def test_a_write_is_found() -> None:
    source = "self.a = 1\nself.b.c = 2\nowned.d += 3\ndel owned.e\nowned.f(g=owned.h)"
    assert list(foreign_writes(source)) == ["line 2: self.b.c", "line 3: owned.d", "line 4: owned.e"]
