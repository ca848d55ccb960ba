"""Small models with experts, whose routers are made to choose unevenly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from meshwright.core.init import Computed, Init
from meshwright.models.deepseek_v3 import DeepseekV3, deepseek_v3
from meshwright.models.qwen3_moe import Qwen3Moe, qwen3_moe
from meshwright.models.router import Choice
from meshwright.parity.shapes import EPSILON
from meshwright.train.config import OptimizerConfig, TrainConfig
from tests.parity.harness import small

FAR: Final = 10.0
"""More than two scores can differ by."""


def _leaning(index: Tensor) -> Tensor:
    """Scores as they are, the first experts somewhat ahead."""
    return 0.1 - 0.02 * index.float()


def _idle(index: Tensor) -> Tensor:
    """Nobody goes to expert 1."""
    return torch.where(index == 1, -FAR, 0.0)


def _one(index: Tensor) -> Tensor:
    """Everybody goes to expert 2, or, with the other choices that a token has, to those before it."""
    return torch.where(index <= 2, FAR * (1 + index), 0.0).float()


FORCED: Final[Mapping[str, Computed]] = MappingProxyType(
    {"leaning": Computed(_leaning), "idle": Computed(_idle), "one": Computed(_one)}
)


class ForcedChoice(Choice):
    """A router whose bias begins where it is told."""

    @dataclass(kw_only=True, slots=True)
    class Config(Choice.Config):
        """towards: one of `FORCED`."""

        towards: str

    def initializers(self) -> Mapping[str, Init]:
        return {"bias": FORCED[self.config.towards]}


def _forced(choice: Choice.Config, towards: str) -> ForcedChoice.Config:
    """One choice has weight 1 if it is normalized, and its gate no gradient but what is rounded off."""
    kept = {field.name: getattr(choice, field.name) for field in fields(choice)}
    forced = {"biased": True, "groups": 1, "active_groups": 1, "normalized": choice.active > 1}
    return ForcedChoice.Config(**{**kept, **forced}, towards=towards)


@dataclass(kw_only=True)
class ForcedQwen3(Qwen3Moe):
    """Charged for what it is made to do."""

    towards: str = "leaning"

    def choice(self) -> Choice.Config:
        return _forced(super().choice(), self.towards)


@dataclass(kw_only=True)
class ForcedDeepseek(DeepseekV3):
    """Whose biases learn."""

    towards: str = "leaning"

    def choice(self) -> Choice.Config:
        return _forced(super().choice(), self.towards)


def small_experts(family: str, towards: str = "", **numbers: object) -> TrainConfig:
    """family: qwen3 or deepseek, with 8 experts, on 4 rows of 16 tokens; towards: one of `FORCED`, or as it chooses."""
    published = {"qwen3": qwen3_moe, "deepseek": deepseek_v3}[family]("debug").small()
    kind = {"qwen3": ForcedQwen3, "deepseek": ForcedDeepseek}[family] if towards else type(published)
    sizes = {**vars(published), "balance_rate": 0.1, **({"towards": towards} if towards else {}), **numbers}
    return replace(small(), model=kind(**sizes), optimizer=OptimizerConfig(epsilon=EPSILON))
