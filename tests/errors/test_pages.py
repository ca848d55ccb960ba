"""Each kind of error has a page, whose programs do what the page says of them."""

from __future__ import annotations

import re

import pytest

from meshwright.codes import Code
from meshwright.errors import SpmdTypeError
from tests.docs.fenced import run
from tests.errors.pages import FOLDER, MENDED, REFUSED, block

PAGES = {file.stem: file.read_text() for file in sorted(FOLDER.glob("MW*.md"))}
INDEX = (FOLDER / "README.md").read_text()


@pytest.fixture(autouse=True)
def reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_code_has_a_page_and_every_page_a_code():
    assert list(PAGES) == [code.value for code in Code]


@pytest.mark.parametrize("page", PAGES)
def test_the_program_is_refused_in_these_words(page):
    with pytest.raises(SpmdTypeError) as error:
        run("wrong.py", block(PAGES[page], REFUSED, "python"))
    assert [problem.code for problem in error.value.problems] == [Code(page)]
    assert f"{error.value}\n" == block(PAGES[page], REFUSED, "text")


@pytest.mark.parametrize("page", PAGES)
def test_the_mended_program_is_accepted(page):
    mended = block(PAGES[page], MENDED, "python")
    assert "spmd.typecheck()" in mended or "spmd.check(" in mended
    run("mended.py", mended)


@pytest.mark.parametrize("page", PAGES)
def test_a_program_shows_all_that_it_needs(page):
    assert all(block(PAGES[page], title, "python").startswith("import torch\n") for title in (REFUSED, MENDED))


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
