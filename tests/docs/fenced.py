"""Fenced blocks of a page, and how a reader runs one."""

from __future__ import annotations

import linecache
import re
import runpy
from pathlib import Path

import torch
import torch.distributed as dist


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each fenced block, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def run(name: str, program: str) -> None:
    """Run a program as a reader does who has saved it in the current folder, and leave no process group behind."""
    Path(name).write_text(program)
    linecache.checkcache()
    try:
        with torch.random.fork_rng():
            runpy.run_path(name, run_name="__main__")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
