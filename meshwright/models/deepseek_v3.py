"""DeepSeek-V3 in its published size, and a small one for a laptop. DeepSeek-AI, arXiv:2412.19437."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from meshwright.errors import Problem
from meshwright.models import layouts_further
from meshwright.models.block import Block
from meshwright.models.decoder import Decoder
from meshwright.models.feed_forward import FeedForward
from meshwright.models.further import Further
from meshwright.models.latent_heads import LatentHeads
from meshwright.models.layers import ExactLinear, Linear
from meshwright.models.layouts import Plan
from meshwright.models.rope import Yarn
from meshwright.models.router import Choice
from meshwright.models.sparse import Balance, Sparse
from meshwright.models.spec import flag, numbers_of


@dataclass(kw_only=True)
class DeepseekV3(LatentHeads, Sparse):
    """The numbers of a DeepSeek-V3: latent attention, and mixtures of experts after the first blocks."""

    absent_at_0 = LatentHeads.absent_at_0 | {"dense_layers", "shared_experts", "further"}

    hidden: int
    """features inside the feed-forward of the blocks without experts"""
    dense_layers: int
    """number of blocks without experts, which are the first"""
    shared_experts: int
    """number of further experts that see every token"""
    groups: int
    """number of groups of experts; a token goes to experts of a few of them"""
    active_groups: int
    """number of groups that see a token"""
    route_scale: float = 2.5
    """factor of what the chosen experts give"""
    balance: Balance = "bias"
    """how experts get like numbers of tokens: not at all, by a bias of their scores that each step moves, or by a
    charge on uneven numbers that is added to the loss"""
    further: int = 0
    """number of tokens after the next that are predicted too, for what is learned from them: none, or one"""
    further_weight: float = 0.3
    """weight of the loss of that prediction, which is added to the main one"""
    theta: float = 10_000.0
    """base of the rotary wavelengths"""
    epsilon: float = 1e-6
    """added to the mean square in norms"""

    def gate(self) -> Linear.Config:
        """In float32: small differences of scores say where a token goes."""
        return ExactLinear.Config(in_features=self.dim, out_features=self.experts, std=self.std)

    def choice(self) -> Choice.Config:
        return Choice.Config(
            experts=self.experts,
            active=self.active,
            score="sigmoid",
            groups=self.groups,
            active_groups=self.active_groups,
            scale=self.route_scale,
            biased=self.balance == "bias",
            balance=self.charged,
        )

    def shared(self) -> FeedForward.Config | None:
        return self.swiglu(self.shared_experts * self.expert_hidden) if self.shared_experts else None

    def block(self, number: int) -> Block.Config:
        if number >= self.dense_layers:
            return super().block(number)
        return Block.Config(**self.attends(), feed_forward=self.swiglu(self.hidden))

    def modules(self) -> Decoder.Config:
        found = super().modules()
        if self.further:
            found.further = Further.Config(
                stream_norm=self.norm(self.dim),
                ahead_norm=self.norm(self.dim),
                projection=self.linear(2 * self.dim, self.dim),
                block=self.block(self.layers - 1),
                norm=self.norm(self.dim),
                weight=self.further_weight,
            )
        return found

    def declare(self, modules: Decoder.Config, plan: Plan) -> None:
        super().declare(modules, plan)
        if modules.further is not None:
            layouts_further.declare(modules.further, plan)
            self.declare_block(modules.further.block, plan)

    def problems(self) -> list[Problem]:
        found = self._too_far() or super().problems()
        return found or [*self._first_layers(), *(self._unequal_groups() or self._few_groups())]

    def _sizes(self) -> dict[str, float]:
        return {**super()._sizes(), "route_scale": self.route_scale, "further_weight": self.further_weight}

    def _too_far(self) -> list[Problem]:
        if self.further in (0, 1):
            return []
        return [
            Problem(
                where="model.further",
                what=f"{self.further!r} tokens after the next",
                why="one token after the next is predicted, or none",
                fix=flag("further") + " 1",
            )
        ]

    def _first_layers(self) -> list[Problem]:
        if self.dense_layers <= self.layers:
            return []
        return [
            Problem(
                where="model.dense_layers",
                what=f"the first {self.dense_layers} of {self.layers} blocks have no experts",
                fix=f"{flag('dense_layers')} {self.layers}",
            )
        ]

    def _unequal_groups(self) -> list[Problem]:
        """Experts into groups; of more than one the two best of each say which are chosen."""
        legal = [1, *(count for count in range(2, self.experts // 2 + 1) if self.experts % count == 0)]
        if self.groups in legal:
            return []
        return [
            Problem(
                where="model.groups",
                what=f"{self.experts} experts do not make {self.groups} groups of two or more each",
                why="groups are equal, and the two best scores of each say which see the token",
                fix=f"{flag('groups')} {max(count for count in legal if count <= self.groups)}",
            )
        ]

    def _few_groups(self) -> list[Problem]:
        """Groups that have enough experts, and are there."""
        each = self.experts // self.groups
        least = -(-self.active // each)
        if least <= self.active_groups <= self.groups:
            return []
        return [
            Problem(
                where="model.active_groups",
                what=f"{self.active} active experts of {self.active_groups} of {self.groups} groups of {each}",
                why="the experts of a token are all in its active groups",
                fix=f"{flag('active_groups')} {min(max(self.active_groups, least), self.groups)}",
            )
        ]


_SIZES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "debug": {
            "dim": 256,
            "layers": 4,
            "heads": 8,
            "hidden": 768,
            "dense_layers": 1,
            "experts": 16,
            "active": 4,
            "expert_hidden": 128,
            "groups": 4,
            "active_groups": 2,
            "balance_rate": 0.03,
            "q_latent": 96,
            "kv_latent": 64,
            "nope_dim": 32,
            "rope_dim": 16,
            "value_dim": 32,
            "vocab": 4096,
        },
        "671b": {
            "dim": 7168,
            "layers": 61,
            "heads": 128,
            "hidden": 18432,
            "dense_layers": 3,
            "experts": 256,
            "active": 8,
            "expert_hidden": 2048,
            "groups": 8,
            "active_groups": 4,
            "q_latent": 1536,
            "kv_latent": 512,
            "nope_dim": 128,
            "rope_dim": 64,
            "value_dim": 128,
            "vocab": 129_280,
            "scaling": Yarn(),
        },
    }
)
SIZES: Final = tuple(_SIZES)
"""The names that `deepseek_v3` knows."""


def deepseek_v3(size: str) -> DeepseekV3:
    """The numbers of a size: debug, and 671b as published.

    Errors: `ConfigError` for another name.
    """
    return DeepseekV3(shared_experts=1, **numbers_of(_SIZES, size, "deepseek_v3"))
