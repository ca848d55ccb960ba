"""Which rank this process is and what was prepared for it, as the environment says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

CORPUS: Final = "MESHWRIGHT_CORPUS"
"""The environment variable that names the prepared corpus to the ranks of a run; unset under a bare torchrun."""


@dataclass(frozen=True)
class Rank:
    """index of `world` over all machines, local_index of `local_world` on this one."""

    index: int
    world: int
    local_index: int
    local_world: int

    @classmethod
    def of_environment(cls) -> Rank:
        """Errors: `KeyError` in a process that no launcher started."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return cls(*(int(os.environ[name]) for name in names))
