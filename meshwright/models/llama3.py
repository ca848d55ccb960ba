"""Llama 3 in its published sizes, and a small one for a laptop. Grattafiori et al., arXiv:2407.21783."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from meshwright.errors import Problem
from meshwright.models import layouts
from meshwright.models.attention import Attention, DotProduct, Visible, kv_copies
from meshwright.models.decoder import Block, Decoder
from meshwright.models.feed_forward import FeedForward
from meshwright.models.layers import Embedding, Linear, RMSNorm
from meshwright.models.layouts import Plan
from meshwright.models.rope import Rope, RopeScaling
from meshwright.models.spec import MOST, ModelSpec


@dataclass(kw_only=True)
class Llama3(ModelSpec):
    """The numbers of a Llama 3."""

    dim: int
    """features of the stream"""
    layers: int
    """number of blocks"""
    heads: int
    """number of query heads"""
    kv_heads: int
    """number of key/value heads; query heads share them in groups"""
    hidden: int
    """features inside the feed-forward"""
    theta: float = 500_000.0
    """base of the rotary wavelengths"""
    scaling: RopeScaling | None = None
    """stretch of the rotary wavelengths, for sequences longer than the first training's"""
    epsilon: float = 1e-5
    """added to the mean square in norms"""
    tied: bool = False
    """the head uses the embedding's table"""
    std: float = 0.02
    """standard deviation of first weights; those that write into the stream have 1 / sqrt(2 layers) of it"""

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.dim // self.heads

    def problems(self) -> list[Problem]:
        return super().problems() or [*self._splits(), *self._sizes(), *self._stretch()]

    def _splits(self) -> list[Problem]:
        """Features into heads, and heads into groups."""
        problems = []
        if self.dim % (2 * self.heads):
            problems.append(
                Problem(
                    where="model.dim",
                    what=f"{self.dim} features do not make {self.heads} heads of an even number each",
                    why="rotary embedding turns the features of a head in pairs",
                    fix=f"--model.dim {-(-self.dim // (2 * self.heads)) * 2 * self.heads}",
                )
            )
        if self.heads % self.kv_heads:
            legal = [str(count) for count in range(1, self.heads + 1) if self.heads % count == 0]
            problems.append(
                Problem(
                    where="model.kv_heads",
                    what=f"{self.kv_heads} key/value heads cannot be shared by {self.heads} query heads",
                    why="every key/value head serves equally many query heads",
                    fix=f"--model.kv-heads with one of {', '.join(legal)}",
                )
            )
        return problems

    def _sizes(self) -> list[Problem]:
        above = {"theta": self.theta, "epsilon": self.epsilon, "std": self.std}
        return [
            Problem(where=f"model.{name}", what=f"{value}", fix=f"--model.{name} above 0")
            for name, value in above.items()
            if not 0 < value < math.inf
        ]

    def _stretch(self) -> list[Problem]:
        """Numbers of the scaling, each of which divides something."""
        if self.scaling is None:
            return []
        scaling = self.scaling
        right = {
            "factor": (0 < scaling.factor < math.inf, "above 0, and finite"),
            "low": (0 < scaling.low < math.inf, "above 0, and finite"),
            "high": (scaling.low < scaling.high < math.inf, f"above low {scaling.low}, and finite"),
            "length": (1 <= scaling.length <= MOST, f"from 1 to {MOST}"),
        }
        return [
            Problem(
                where=f"model.scaling.{name}", what=f"{getattr(scaling, name)}", fix=f"--model.scaling.{name} {words}"
            )
            for name, (holds, words) in right.items()
            if not holds
        ]

    def tp_copies(self, tp: int) -> int:
        return kv_copies(self.kv_heads, tp)

    def modules(self) -> Decoder.Config:
        return Decoder.Config(
            embedding=Embedding.Config(vocab=self.vocab, dim=self.dim, std=self.std),
            rope=Rope.Config(head_dim=self.head_dim, theta=self.theta, scaling=self.scaling),
            visible=Visible.Config(),
            blocks=[self._block() for _ in range(self.layers)],
            norm=self._norm(),
            head=self._linear(self.dim, self.vocab),
            tied=self.tied,
        )

    def declare(self, modules: Decoder.Config, plan: Plan) -> None:
        modules.sharding_config = layouts.decoder(plan)
        modules.embedding.sharding_config = layouts.embedding(plan)
        modules.rope.sharding_config = layouts.rope()
        modules.visible.sharding_config = layouts.visible()
        for block in modules.blocks:
            block.attention_norm.sharding_config = layouts.norm(plan)
            block.attention.sharding_config = layouts.enters(plan)
            block.attention.wq.sharding_config = layouts.colwise()
            block.attention.wk.sharding_config = layouts.kv_colwise()
            block.attention.wv.sharding_config = layouts.kv_colwise()
            block.attention.inner.sharding_config = layouts.attention_region()
            block.attention.wo.sharding_config = layouts.rowwise(plan)
            block.feed_forward_norm.sharding_config = layouts.norm(plan)
            block.feed_forward.sharding_config = layouts.enters(plan)
            block.feed_forward.w1.sharding_config = layouts.colwise()
            block.feed_forward.w3.sharding_config = layouts.colwise()
            block.feed_forward.w2.sharding_config = layouts.rowwise(plan)
        modules.norm.sharding_config = layouts.norm(plan)
        modules.head.sharding_config = layouts.head(plan)

    def _block(self) -> Block.Config:
        kv = self.kv_heads * self.head_dim
        into_stream = self.std / math.sqrt(2 * self.layers)
        return Block.Config(
            attention_norm=self._norm(),
            attention=Attention.Config(
                head_dim=self.head_dim,
                wq=self._linear(self.dim, self.dim),
                wk=self._linear(self.dim, kv),
                wv=self._linear(self.dim, kv),
                wo=self._linear(self.dim, self.dim, into_stream),
                inner=DotProduct.Config(),
            ),
            feed_forward_norm=self._norm(),
            feed_forward=FeedForward.Config(
                w1=self._linear(self.dim, self.hidden),
                w2=self._linear(self.hidden, self.dim, into_stream),
                w3=self._linear(self.dim, self.hidden),
            ),
        )

    def _norm(self) -> RMSNorm.Config:
        return RMSNorm.Config(dim=self.dim, epsilon=self.epsilon)

    def _linear(self, inputs: int, outputs: int, std: float | None = None) -> Linear.Config:
        return Linear.Config(in_features=inputs, out_features=outputs, std=std or self.std)


_LLAMA_3_2: Final = RopeScaling(factor=32.0)
_SIZES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "debug": {"dim": 256, "layers": 6, "heads": 8, "kv_heads": 4, "hidden": 768, "vocab": 4096},
        "1b": {
            "dim": 2048,
            "layers": 16,
            "heads": 32,
            "kv_heads": 8,
            "hidden": 8192,
            "tied": True,
            "scaling": _LLAMA_3_2,
        },
        "3b": {
            "dim": 3072,
            "layers": 28,
            "heads": 24,
            "kv_heads": 8,
            "hidden": 8192,
            "tied": True,
            "scaling": _LLAMA_3_2,
        },
        "8b": {"dim": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "hidden": 14336},
        "70b": {"dim": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "hidden": 28672},
        "405b": {"dim": 16384, "layers": 126, "heads": 128, "kv_heads": 8, "hidden": 53248, "scaling": RopeScaling()},
    }
)
SIZES: Final = tuple(_SIZES)
"""The names that `llama3` knows."""


def llama3(size: str) -> Llama3:
    """The numbers of a size: debug, and 1b to 405b as published.

    Errors: `KeyError` for another name.
    """
    return Llama3(**{"vocab": 128_256, **_SIZES[size]})
