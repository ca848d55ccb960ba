"""Each kind of error has a page, whose programs do what the page says of them."""

from __future__ import annotations

import linecache
import re
import runpy
from pathlib import Path

import pytest
import torch

from meshwright.codes import Code
from meshwright.errors import SpmdTypeError

FOLDER = Path(__file__).parents[2] / "docs" / "errors"
PAGES = {page.stem: page.read_text() for page in sorted(FOLDER.glob("MW*.md"))}
INDEX = (FOLDER / "README.md").read_text()


def block(page: str, title: str, language: str) -> str:
    """The fenced block of a language under a heading."""
    (section,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGES[page], re.DOTALL | re.MULTILINE)
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return found


def run(name: str, program: str) -> None:
    """Run a program as a reader does who has saved it in the current folder."""
    Path(name).write_text(program)
    linecache.checkcache()
    with torch.random.fork_rng():
        runpy.run_path(name, run_name="__main__")


@pytest.fixture(autouse=True)
def reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_code_has_a_page_and_every_page_a_code():
    assert list(PAGES) == [code.value for code in Code]


@pytest.mark.parametrize("page", PAGES)
def test_the_program_is_refused_in_these_words(page):
    with pytest.raises(SpmdTypeError) as error:
        run("wrong.py", block(page, "A program that is refused", "python"))
    assert [problem.code for problem in error.value.problems] == [Code(page)]
    assert f"{error.value}\n" == block(page, "A program that is refused", "text")


@pytest.mark.parametrize("page", PAGES)
def test_the_mended_program_is_accepted(page):
    mended = block(page, "The same program, mended", "python")
    assert "spmd.typecheck()" in mended or "spmd.check(" in mended
    run("mended.py", mended)


@pytest.mark.parametrize("page", PAGES)
def test_a_program_shows_all_that_it_needs(page):
    for title in ("A program that is refused", "The same program, mended"):
        assert block(page, title, "python").startswith("import torch\n")


def test_the_index_lists_every_page_by_its_title():
    titles = {page: re.match(rf"# {page}: (.*)", text)[1] for page, text in PAGES.items()}
    rows = [f"| [{code.value}]({code.value}.md) | `{code.name}` | {titles[code.value]} |" for code in Code]
    assert [line for line in INDEX.splitlines() if line.startswith("| [MW")] == rows


@pytest.mark.parametrize("page", ["README", *PAGES])
def test_every_link_leads_somewhere(page):
    text = (FOLDER / f"{page}.md").read_text()
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert targets
    assert [target for target in targets if not (FOLDER / target).exists()] == []
