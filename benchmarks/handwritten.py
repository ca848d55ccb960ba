"""The debug Llama as a careful engineer writes it by hand for tensor and sequence parallelism, in the Megatron manner.

It knows nothing of meshwright: collectives stand in the model, every shape is the local one. Parameters have the names
that the declared model gives them, so that values can be copied over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

_c10d = torch.ops._c10d_functional
_wait = _c10d.wait_tensor.default


@dataclass(frozen=True)
class Shape:
    """Global sizes and this rank's place in its tensor-parallel group."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    theta: float
    epsilon: float
    group: dist.ProcessGroup

    @property
    def tp(self) -> int:
        return self.group.size()

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def _gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[B, L/tp, D] -> [B, L, D]."""
    if x.shape[0] == 1:
        y = _wait(_c10d.all_gather_into_tensor.default(x.reshape(x.shape[1:]), group.size(), group.group_name))
        return y.reshape(1, -1, x.shape[2])
    y = _wait(_c10d.all_gather_into_tensor.default(x.contiguous(), group.size(), group.group_name))
    return torch.cat(y.chunk(group.size()), 1)


def _scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[B, L, D] -> [B, L/tp, D], this rank's part of the sum."""
    if x.shape[0] == 1:
        flat = x.reshape(x.shape[1:])
        y = _wait(_c10d.reduce_scatter_tensor.default(flat, "sum", group.size(), group.group_name))
        return y.reshape(1, -1, x.shape[2])
    stacked = torch.cat(x.chunk(group.size(), 1))
    return _wait(_c10d.reduce_scatter_tensor.default(stacked, "sum", group.size(), group.group_name))


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _scatter(grads[0], ctx.group), None


class _ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gather(grads[0], ctx.group), None


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, start: int, group: dist.ProcessGroup) -> Tensor:
        top = _wait(_c10d.all_reduce.default(logits.amax(-1), "max", group.group_name))
        shifted = logits - top.unsqueeze(-1)
        valid = labels != -100
        here = valid & (labels >= start) & (labels < start + logits.shape[-1])
        column = (labels - start).masked_fill(~here, 0).unsqueeze(-1)
        wanted = shifted.gather(-1, column).squeeze(-1).masked_fill(~here, 0.0)
        exponents = shifted.exp_()
        sums = torch.stack((exponents.sum(-1), wanted))
        total, wanted = _wait(_c10d.all_reduce.default(sums, "sum", group.group_name)).unbind()
        ctx.save_for_backward(exponents, total, column, here, valid)
        return (total.log() - wanted).masked_fill(~valid, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        exponents, total, column, here, valid = ctx.saved_tensors
        scale = grads[0] * valid
        grad = exponents * (scale / total).unsqueeze(-1)
        grad.scatter_add_(-1, column, -(scale * here).unsqueeze(-1))
        return grad, None, None, None


class _Norm(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.dim))
        self.epsilon = shape.epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim, self.group = shape.head_dim, shape.group
        kv = shape.kv_heads * shape.head_dim // shape.tp
        self.wq = nn.Linear(shape.dim, shape.dim // shape.tp, bias=False)
        self.wk = nn.Linear(shape.dim, kv, bias=False)
        self.wv = nn.Linear(shape.dim, kv, bias=False)
        self.wo = nn.Linear(shape.dim // shape.tp, shape.dim, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        x = _GatherSequence.apply(x, self.group)
        q = self.wq(x).unflatten(-1, (-1, self.head_dim))
        k = self.wk(x).unflatten(-1, (-1, self.head_dim))
        v = self.wv(x).unflatten(-1, (-1, self.head_dim))
        q, k = _rotate(q, cosine, sine), _rotate(k, cosine, sine)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)
        return _ScatterSequence.apply(self.wo(out.flatten(-2)), self.group)


class _FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.group = shape.group
        self.w1 = nn.Linear(shape.dim, shape.hidden // shape.tp, bias=False)
        self.w2 = nn.Linear(shape.hidden // shape.tp, shape.dim, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.hidden // shape.tp, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = _GatherSequence.apply(x, self.group)
        return _ScatterSequence.apply(self.w2(F.silu(self.w1(x)) * self.w3(x)), self.group)


class _Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = _Norm(shape)
        self.attention = _Attention(shape)
        self.feed_forward_norm = _Norm(shape)
        self.feed_forward = _FeedForward(shape)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class _Embedding(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.group, self.rows = shape.group, shape.vocab // shape.tp
        self.weight = nn.Parameter(torch.empty(self.rows, shape.dim))
        self.start = shape.group.rank() * self.rows

    def forward(self, tokens: Tensor) -> Tensor:
        elsewhere = (tokens < self.start) | (tokens >= self.start + self.rows)
        found = F.embedding((tokens - self.start).masked_fill(elsewhere, 0), self.weight)
        return _ScatterSequence.apply(found.masked_fill(elsewhere.unsqueeze(-1), 0.0), self.group)


class _Head(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.group = shape.group
        self.weight = nn.Parameter(torch.empty(shape.vocab // shape.tp, shape.dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(_GatherSequence.apply(x, self.group), self.weight)


class HandwrittenLlama(nn.Module):
    """tokens, positions, documents [B, L] -> logits [B, L, vocab / tp] of this rank."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = _Embedding(shape)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = _Norm(shape)
        self.head = _Head(shape)
        pairs = torch.arange(shape.head_dim // 2).float()
        self.register_buffer("frequencies", shape.theta ** (-2.0 * pairs / shape.head_dim), persistent=False)
        self.start = shape.group.rank() * (shape.vocab // shape.tp)

    def forward(self, tokens: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        earlier = positions[:, :, None] >= positions[:, None, :]
        mask = ((documents[:, :, None] == documents[:, None, :]) & earlier).unsqueeze(1)
        angle = positions.unsqueeze(-1).float() * self.frequencies
        angle = torch.cat((angle, angle), -1).unsqueeze(-2)
        cosine, sine = angle.cos(), angle.sin()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine, mask)
        return self.head(self.norm(x))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The sum over tokens of -log p(label)."""
        flat = logits.flatten(0, -2).float()
        return _VocabCrossEntropy.apply(flat, labels.flatten(), self.start, self.shape.group)


class HandwrittenStep:
    """One optimizer step of a model that FSDP shards over `dp`, each sum made once."""

    def __init__(self, model: HandwrittenLlama, dp: dist.ProcessGroup, decay: float) -> None:
        self.model, self.dp, self.tp = model, dp, model.shape.group
        params = list(model.parameters())
        matrices, vectors = ([p for p in params if (p.dim() >= 2) is two] for two in (True, False))
        self.params = params
        self.once = torch.tensor([1.0 if p.dim() >= 2 else 1.0 / self.tp.size() for p in params], dtype=torch.float64)
        groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)

    def __call__(
        self, tokens: Tensor, labels: Tensor, positions: Tensor, documents: Tensor, rate: float, max_norm: float
    ) -> tuple[float, float]:
        """[B, L] of this rank -> (loss per valid token over all ranks, gradient norm)."""
        self.optimizer.zero_grad(set_to_none=True)
        self.model.set_requires_gradient_sync(True)
        valid = _all_reduce((labels != -100).sum(), self.dp).clamp(min=1)
        loss = self.model.loss(self.model(tokens, positions, documents), labels) / valid
        loss.backward()
        loss = loss.detach()
        with torch.no_grad():
            grads = [p.grad.to_local() for p in self.params]
            partial = [grad for grad, p in zip(grads, self.params, strict=True) if p.dim() < 2]
            total = _all_reduce(
                torch.cat([grad.reshape(-1) for grad in partial]), self.tp
            )  # a part of the sequence each
            for grad, piece in zip(partial, total.split([grad.numel() for grad in partial]), strict=True):
                grad.copy_(piece.view(grad.shape))
            squares = (torch.stack(torch._foreach_norm(grads)).double().square() * self.once).sum()
            norm = _all_reduce(squares, dist.group.WORLD).sqrt()
            shown = _all_reduce(loss, self.dp).item(), norm.item()
            scale = (max_norm / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1.0)
            torch._foreach_mul_(grads, scale.to(grads[0].dtype))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return shown


def _all_reduce(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return _wait(_c10d.all_reduce.default(x, "sum", group.group_name))
