"""`Sparse`: the numbers of blocks that send each token to a few of many experts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Final, Literal, get_args

from meshwright.errors import Problem, nearest
from meshwright.models import layouts_moe
from meshwright.models.block import Block, SparseBlock
from meshwright.models.decoder import Decoder
from meshwright.models.decoder_spec import DecoderSpec, declare_swiglu
from meshwright.models.experts import Experts
from meshwright.models.feed_forward import FeedForward
from meshwright.models.layers import Linear
from meshwright.models.layouts import Plan
from meshwright.models.load import Charge, Load
from meshwright.models.moe import MoE, Routed
from meshwright.models.router import Choice, Router
from meshwright.models.spec import flag

Balance = Literal["none", "bias", "loss"]
BALANCES: Final = get_args(Balance)
"""The ways to give experts like numbers of tokens."""


@dataclass(kw_only=True)
class Sparse(DecoderSpec):
    """The numbers of a decoder with mixtures of experts. A family says how its routers choose."""

    experts: int
    """number of experts of a block among which its router chooses"""
    active: int
    """number of them that see a token"""
    expert_hidden: int
    """features inside an expert"""
    balance: Balance = "loss"
    """how experts get like numbers of tokens: not at all, by a bias of their scores that each step moves, or by a
    charge on uneven numbers that is added to the loss"""
    balance_rate: float = 0.001
    """step of the bias, or weight of the charge"""

    @abstractmethod
    def choice(self) -> Choice.Config:
        """How a router chooses, without its sharding."""

    def shared(self) -> FeedForward.Config | None:
        """The experts that see every token, as one feed-forward."""
        return None

    def problems(self) -> list[Problem]:
        return super().problems() or [*self._too_many(), *self._unknown_balance()]

    def _sizes(self) -> dict[str, float]:
        return {**super()._sizes(), "balance_rate": self.balance_rate}

    def _too_many(self) -> list[Problem]:
        if self.active <= self.experts:
            return []
        return [
            Problem(
                where="model.active",
                what=f"{self.active} of {self.experts} experts",
                why="a token goes to different experts",
                fix=f"{flag('active')} {self.experts}",
            )
        ]

    def _unknown_balance(self) -> list[Problem]:
        if self.balance in BALANCES:
            return []
        return [
            Problem(
                where="model.balance",
                what=f"{self.balance!r}{nearest(str(self.balance), BALANCES)}",
                fix=f"{flag('balance')} with one of {', '.join(BALANCES)}",
            )
        ]

    @property
    def charged(self) -> float:
        """Weight of the charge on uneven numbers; 0 where there is none."""
        return self.balance_rate if self.balance == "loss" else 0.0

    def modules(self) -> Decoder.Config:
        found = super().modules()
        rate = self.balance_rate if self.balance == "bias" else 0.0
        found.load = Load.Config(experts=self.experts, rate=rate)
        found.charge = Charge.Config() if self.charged else None
        return found

    def declare(self, modules: Decoder.Config, plan: Plan) -> None:
        super().declare(modules, plan)
        if modules.load is not None:
            modules.load.sharding_config = layouts_moe.load(plan)
        if modules.charge is not None:
            modules.charge.sharding_config = layouts_moe.charge()

    def gate(self) -> Linear.Config:
        """What scores the experts for a token."""
        return self.linear(self.dim, self.experts)

    def block(self, number: int) -> Block.Config:
        mixture = MoE.Config(
            routed=Routed.Config(
                router=Router.Config(gate=self.gate(), choice=self.choice()),
                experts=Experts.Config(
                    experts=self.experts,
                    dim=self.dim,
                    hidden=self.expert_hidden,
                    std=self.std,
                    std_out=self.std_out,
                ),
            ),
            shared=self.shared(),
        )
        return SparseBlock.Config(**self.attends(), feed_forward=mixture)

    def declare_feed_forward(self, block: Block.Config, plan: Plan) -> None:
        if isinstance(block, SparseBlock.Config):
            layouts_moe.declare(block.feed_forward, plan)
        else:
            declare_swiglu(block.feed_forward, plan)
