"""Where in the model's code something happened."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Final

import torch

_SKIPPED: Final = (
    *(f"{Path(__file__).parents[1] / room}/" for room in ("check", "comm", "audit", "core")),
    f"{Path(torch.__file__).parent}/",
)


def of_error(error: BaseException) -> str:
    """`layers.py:96 "return F.linear(...)"`: the innermost line of the model that was running."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_skipped(frame.filename)]
    return _line(frames[-1]) if frames else type(error).__name__


def running() -> str:
    """The innermost line of the model that runs now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_skipped(frame.f_code.co_filename):
        frame = frame.f_back
    return _line(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))


def _is_skipped(file: str) -> bool:
    return file.startswith(_SKIPPED)


def _line(frame: traceback.FrameSummary) -> str:
    return f'{frame.filename.rpartition("/")[2]}:{frame.lineno} "{(frame.line or "").strip()}"'
