"""`python -m tests.errors`: write into each page the message that its program meets now."""

from __future__ import annotations

import os
import tempfile

from meshwright.errors import SpmdTypeError
from tests.docs.fenced import run
from tests.errors.pages import FOLDER, REFUSED, block

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for file in sorted(FOLDER.glob("MW*.md")):
        page = file.read_text()
        try:
            run("wrong.py", block(page, REFUSED, "python"))
        except SpmdTypeError as error:
            file.write_text(page.replace(f"```text\n{block(page, REFUSED, 'text')}```", f"```text\n{error}\n```"))
