"""`GroupedHeads`: the numbers of attention whose query heads share keys and values in groups."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.models import layouts
from meshwright.models.attention import Attention, DotProduct, kv_copies
from meshwright.models.decoder_spec import DecoderSpec
from meshwright.models.layers import RMSNorm
from meshwright.models.layouts import Plan


@dataclass(kw_only=True)
class GroupedHeads(DecoderSpec):
    """The numbers of a decoder with grouped attention. A family says how wide a head is."""

    kv_heads: int
    """number of key/value heads; query heads share them in groups"""

    @property
    @abstractmethod
    def head_dim(self) -> int:
        """Features of a head."""

    @property
    def turned(self) -> int:
        return self.head_dim

    def problems(self) -> list[Problem]:
        return super().problems() or self._groups()

    def _groups(self) -> list[Problem]:
        if self.heads % self.kv_heads == 0:
            return []
        legal = [str(count) for count in range(1, self.heads + 1) if self.heads % count == 0]
        return [
            Problem(
                where="model.kv_heads",
                what=f"{self.kv_heads} key/value heads cannot be shared by {self.heads} query heads",
                why="every key/value head serves equally many query heads",
                fix=f"--model.kv-heads with one of {', '.join(legal)}; or --model.heads with a multiple of "
                f"{self.kv_heads}: {', '.join(str(self.kv_heads * n) for n in (1, 2, 3))}, ...",
            )
        ]

    def tp_copies(self, tp: int) -> int:
        return kv_copies(self.kv_heads, tp)

    def head_norm(self) -> RMSNorm.Config | None:
        """The norm of each query and key over its own features, before they turn; one weight for all heads."""
        return None

    def attention(self) -> Attention.Config:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return Attention.Config(
            head_dim=self.head_dim,
            wq=self.linear(self.dim, queries),
            wk=self.linear(self.dim, keys),
            wv=self.linear(self.dim, keys),
            wo=self.linear(queries, self.dim, self.std_out),
            q_norm=self.head_norm(),
            k_norm=self.head_norm(),
            inner=DotProduct.Config(),
        )

    def declare_attention(self, attention: Attention.Config, plan: Plan) -> None:
        attention.sharding_config = layouts.enters(plan)
        attention.wq.sharding_config = layouts.colwise()
        attention.wk.sharding_config = layouts.kv_colwise()
        attention.wv.sharding_config = layouts.kv_colwise()
        if attention.q_norm is not None:
            attention.q_norm.sharding_config = layouts.head_norm()
        if attention.k_norm is not None:
            attention.k_norm.sharding_config = layouts.kv_head_norm()
        attention.inner.sharding_config = layouts.attention_region()
        attention.wo.sharding_config = layouts.rowwise(plan)
