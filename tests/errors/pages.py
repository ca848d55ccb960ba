"""The pages on errors, and what their programs print."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.fenced import blocks

FOLDER = Path(__file__).parents[2] / "docs" / "errors"
REFUSED = "A program that is refused"
MENDED = "The same program, mended"


def block(page: str, title: str, language: str) -> str:
    """The fenced block of a language under a heading."""
    (section,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    (found,) = [text for each, text in blocks(section) if each == language]
    return found
