"""Contrast of the page's colours in both schemes: 4.5 for text (WCAG 1.4.3), 3 for parts of a chart (1.4.11)."""

import re
from itertools import product
from pathlib import Path

import pytest

from bridge.page import rendering

CSS = (Path(rendering.__file__).parent / "static" / "page.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", rule)) for rule in re.findall(r":root \{(.*?)\}", CSS, re.S)
)
TEXTS = [
    *product(("text", "quiet", "accent", "danger"), ("ground", "raised")),
    *product(("on-accent",), ("accent", "danger")),
    *product(("text", "quiet", "accent"), ("warning",)),
]
DRAWN = [*product((f"topic{number}" for number in range(6)), ("ground",)), ("quiet", "ground"), ("accent", "raised")]


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    shares = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast_is_sufficient(colours: dict[str, str]) -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert colours.keys() == LIGHT.keys(), "each colour has a value in both schemes"
    for pairs, least in ((TEXTS, 4.5), (DRAWN, 3)):
        found = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
        assert {pair: value for pair, value in found.items() if value < least} == {}
