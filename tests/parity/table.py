"""`docs/parity.md`: ten steps on each backend, held against each other bit by bit: `python -m tests.parity.table`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from meshwright.errors import MeshwrightError
from meshwright.parity.batch import unequal_batch
from meshwright.parity.layouts import world_of
from meshwright.parity.processes import Ranks, Started
from meshwright.parity.recipe import Recipe
from meshwright.parity.refusals import refusal
from meshwright.parity.shapes import ACCUMULATE, Shapes
from meshwright.parity.step import on_process, one_device, own_batches
from meshwright.train.assemble import Assembly
from meshwright.train.config import BackendName, ParallelConfig, TrainConfig
from meshwright.train.step import train_step

STEPS: Final = 10
RATE: Final = 1e-2
WITHIN: Final = 1e-6
FILE: Final = Path(__file__).parents[2] / "docs" / "parity.md"
DENSE: Final = {"Llama 3": "llama3_debug", "Qwen3": "qwen3_debug"}
SPARSE: Final = {"Qwen3-MoE": "qwen3_moe_debug", "DeepSeek-V3": "deepseek_v3_debug"}
RECIPES: Final = {**DENSE, **SPARSE}
OTHERS: Final[Sequence[BackendName]] = ("full_dtensor", "partial_dtensor")
ONE: Final[Mapping[str, Mapping[str, object]]] = {
    "FSDP 2": {"dp_shard": 2},
    "HSDP 2x2": {"dp_replicate": 2, "dp_shard": 2},
    "CP 2": {"cp": 2},
    "TP 2": {"tp": 2, "sequence_parallel": False},
    "TP 2 SP": {"tp": 2},
}
"""SP: sequence parallel."""
_TOGETHER: Final = (
    ("FSDP 2", "CP 2"),
    ("FSDP 2", "TP 2"),
    ("FSDP 2", "TP 2 SP"),
    ("HSDP 2x2", "CP 2"),
    ("HSDP 2x2", "TP 2"),
    ("HSDP 2x2", "TP 2 SP"),
    ("CP 2", "TP 2"),
    ("CP 2", "TP 2 SP"),
    ("FSDP 2", "CP 2", "TP 2"),
    ("FSDP 2", "CP 2", "TP 2 SP"),
)

_SPREAD: Final = (
    (2, "FSDP 2"),
    (2, "CP 2"),
    (2, "TP 2"),
    (2, "TP 2 SP"),
    (2, "HSDP 2x2"),
    (2, "FSDP 2", "CP 2"),
    (4, "FSDP 2", "CP 2"),
    (2, "FSDP 2", "TP 2"),
    (4, "FSDP 2", "TP 2 SP"),
    (4, "CP 2", "TP 2 SP"),
    (2, "HSDP 2x2", "TP 2 SP"),
    (4, "HSDP 2x2", "CP 2"),
    (4, "FSDP 2", "CP 2", "TP 2"),
    (4, "FSDP 2", "CP 2", "TP 2 SP"),
    (8, "FSDP 2", "CP 2", "TP 2 SP"),
)
"""Ranks over which experts are spread, and the layout beside."""

Curve = Sequence[tuple[float, float]]
"""Loss and gradient norm of each step."""


@dataclass(frozen=True)
class Row:
    """One model in one layout. curves: backend -> its steps, or why there are none."""

    model: str
    layout: str
    alone: Curve
    curves: Mapping[str, Curve | str]


def layouts() -> dict[str, ParallelConfig]:
    """Name -> layout, of one axis, two and three."""
    return {" + ".join(names): _together(*names) for names in (*((name,) for name in ONE), *_TOGETHER)}


def of(model: str) -> dict[str, ParallelConfig]:
    """The layouts of a model's rows; of one with experts also those in which they are spread."""
    spread = {" + ".join((*names, f"EP {ep}")): _together(*names, ep=ep) for ep, *names in _SPREAD}
    return layouts() | (spread if model in SPARSE else {})


def _together(*names: str, **more: object) -> ParallelConfig:
    return ParallelConfig(**{key: value for name in names for key, value in ONE[name].items()}, **more)  # type: ignore[arg-type]


def curve(run: Assembly, config: TrainConfig, shapes: Shapes) -> list[tuple[float, float]]:
    """`STEPS` steps, each on a batch of its own."""
    found = []
    for step in range(1, STEPS + 1):
        seeds = range(step * ACCUMULATE, (step + 1) * ACCUMULATE)
        batches = [unequal_batch(shapes.vocab, shapes.rows, shapes.length, seed) for seed in seeds]
        measured = train_step(run, own_batches(run, config, batches), step=step, rate=RATE, max_norm=1.0)
        found.append((measured.loss, measured.grad_norm))
    return found


def curve_on(rank: int, recipe: Recipe, layout: ParallelConfig, shapes: Shapes) -> list[tuple[float, float]]:
    """The steps of one process."""
    config = shapes.shrunk(recipe.load(), layout)
    return curve(on_process(rank, config), config, shapes)


def rows(models: Mapping[str, str] = RECIPES, chosen: Mapping[str, ParallelConfig] | None = None) -> Iterator[Row]:
    """Every row; processes of one number of ranks are started once."""
    table = {model: of(model) if chosen is None else chosen for model in models}
    with closing(Started()) as started:
        for world in sorted({world_of(layout) for each in table.values() for layout in each.values()}):
            for model, name in models.items():
                recipe = Recipe(name)
                for called, layout in table[model].items():
                    if world_of(layout) != world:
                        continue
                    shapes = Shapes.of(recipe.load(), layout)
                    single = shapes.shrunk(recipe.load(), ParallelConfig())
                    curves: dict[str, Curve | str] = {}
                    for backend in ("spmd_types", *OTHERS):
                        ranks = started.of(world)
                        curves[backend] = _tried(ranks, recipe, replace(layout, backend=backend), shapes)
                    yield Row(model, called, curve(one_device(single), single, shapes), curves)


def _tried(ranks: Ranks, recipe: Recipe, layout: ParallelConfig, shapes: Shapes) -> Curve | str:
    refused = refusal(shapes.shrunk(recipe.load(), layout))
    if refused is not None:
        return str(refused[1][0]).partition("\n")[0]
    try:
        curves = ranks.run(curve_on, recipe, layout, shapes)
    except MeshwrightError as error:
        return str(error).partition("\n")[0]
    assert all(found == curves[0] for found in curves), "loss and norm are equal on all ranks"
    return curves[0]


def apart(mine: Curve, other: Curve) -> float:
    """The largest relative difference of a loss or a norm; 0: equal bits."""
    pairs = zip(mine, other, strict=True)
    return max(abs(a - b) / abs(b) for two in pairs for a, b in zip(*two, strict=True))


def cell(found: Curve | str, measure: Curve | str) -> str:
    """What a backend is against another: `equal bits`, a relative difference, or why it does not run."""
    if isinstance(found, str) or isinstance(measure, str):
        return f"refused: {found if isinstance(found, str) else measure}"
    difference = apart(found, measure)
    return "equal bits" if difference == 0 else f"{difference:.0e}, sums in another order"


def document(found: Sequence[Row]) -> str:
    """The page."""
    lines = [
        "# The backends agree",
        "",
        f"Made by `make parity-table`: {STEPS} steps of AdamW on real processes over gloo, float32, from one seed, on",
        "a small model of the recipe's structure (`ModelSpec.small`), on rows with different numbers of valid tokens,",
        f"{ACCUMULATE} micro-batches a step. Columns `full_dtensor` and `partial_dtensor` hold loss and gradient norm",
        "of every step against `spmd_types`: *equal bits*, or the largest relative difference, which is at most",
        f"{WITHIN:g}.",
        "",
        "Column `one device` is how far `spmd_types` is then from a run without any mesh. Sums over ranks are taken in",
        "another order than on one device, and each step starts from what the last one left of that. SP: sequence",
        "parallel.",
        "",
        "| model | layout | processes | one device | full_dtensor | partial_dtensor |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        measure = row.curves["spmd_types"]
        away = cell(measure, row.alone).partition(",")[0]
        others = [cell(row.curves[backend], measure) for backend in OTHERS]
        lines.append(
            f"| {' | '.join([row.model, row.layout, str(world_of(of(row.model)[row.layout])), away, *others])} |"
        )
    return "\n".join([*lines, ""])


def _in_order(row: Row) -> tuple[int, int]:
    return list(RECIPES).index(row.model), list(of(row.model)).index(row.layout)


def main() -> None:
    """Write the page."""
    found = []
    for row in rows():
        found.append(row)
        print(
            row.model,
            row.layout,
            [cell(row.curves[backend], row.curves["spmd_types"]) for backend in OTHERS],
            flush=True,
        )
    FILE.write_text(document(sorted(found, key=_in_order)), encoding="utf-8")


if __name__ == "__main__":
    main()
