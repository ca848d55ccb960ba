"""The public names have the types that their users' programs are checked with."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import meshwright
import meshwright.spmd as spmd

HERE = Path(__file__).parent
PROGRAM, WRONG = HERE / "program.py", HERE / "wrong.py"


@cache
def mypy() -> str:
    """What `mypy --strict` says of both files, as of a user's, who does not check meshwright itself."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--no-pretty"]
    ended = subprocess.run(
        [*command, f"--cache-dir={HERE.parents[1] / '.mypy_cache' / 'typing'}", str(PROGRAM), str(WRONG)],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
    )
    assert ended.stderr == ""
    return ended.stdout


def reported(file: Path) -> set[tuple[int, str]]:
    """(line, code) of each error in a file."""
    found = re.findall(rf"{file.name}:(\d+): error: .*\[([\w-]+)\]$", mypy(), re.MULTILINE)
    return {(int(line), code) for line, code in found}


def test_a_right_program_is_right() -> None:
    assert [line for line in mypy().splitlines() if PROGRAM.name in line] == []


def test_every_wrong_use_is_reported_and_nothing_else() -> None:
    marked = {
        (number, found[1])
        for number, line in enumerate(WRONG.read_text().splitlines(), 1)
        if (found := re.search(r"  # ([\w-]+)$", line))
    }
    assert len(marked) >= 10
    assert reported(WRONG) == marked


def test_the_program_uses_every_public_name() -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(PROGRAM.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "spmd"
    }
    assert used == set(spmd.__all__)


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(meshwright.__file__).parent / "py.typed").is_file()
