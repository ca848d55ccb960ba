"""The releases of torch that the backends are tested on: they lean on names of torch that may change without notice."""

from __future__ import annotations

import warnings
from typing import Final

import torch

TESTED: Final = ("2.13.0", "2.14.1")
"""One of each series; patches of a series keep its names. `make test-torch VERSION=...` tests another."""


class UntestedTorchWarning(UserWarning):
    """The installed torch is of no tested series."""


def is_tested(release: str) -> bool:
    """Whether a release, as `torch.__version__` names it, is of the series of a tested one."""
    return _series(release) in map(_series, TESTED)


def warn_of_untested() -> None:
    """Warn, once a process, where the installed torch is of no tested series."""
    release = str(torch.__version__)
    if not is_tested(release):
        warnings.warn(
            f"torch {release} is not tested with meshwright, which was tested on torch {', '.join(TESTED)}; if"
            f" anything fails, install one of these: pip install torch=={TESTED[-1]}",
            UntestedTorchWarning,
            stacklevel=2,
        )


def _series(release: str) -> tuple[str, ...]:
    return tuple(release.split("+")[0].split(".")[:2])
