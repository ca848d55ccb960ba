"""The model that `benchmarks.checker` times is judged, and judged or not it runs the same matmuls."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.checked_model import programs
from meshwright import recipes
from meshwright.check import layout_of
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P


class Ops(TorchDispatchMode):
    """Counts the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **kwargs or {})


def test_the_loss_has_the_type_of_a_step_and_both_run_its_matmuls() -> None:
    found = programs(recipes.find("llama3_debug"))
    matmuls = {}
    for name, program in found.items():
        with Ops() as ops:
            loss = program()
        matmuls[name] = ops.counts["aten.mm.default"]
    assert layout_of(loss) == {"dp": P, "tp": I}
    assert matmuls["unchecked"] == matmuls["checked"] > 100


def test_a_wrong_declaration_is_refused() -> None:
    def layouts(spec: Any, modules: Any, plan: Any) -> None:
        spec.declare(modules, plan)
        declared = modules.blocks[0].attention.wo.sharding_config
        modules.blocks[0].attention.wo.sharding_config = replace(declared, out_src_shardings=declared.out_dst_shardings)

    found = programs(replace(recipes.find("llama3_debug"), layouts=layouts))
    with pytest.raises(SpmdTypeError, match=r"blocks\.0\.attention.* x is P on axis 'tp', not S\(1\)"):
        found["checked"]()
