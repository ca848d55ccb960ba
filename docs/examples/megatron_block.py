"""A transformer block in Megatron style, with three mistakes that no shape shows.

python docs/examples/megatron_block.py          follow R, I, V and P
python docs/examples/megatron_block.py --dims   follow also which dim is cut
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import meshwright.spmd as spmd

LENGTH, BATCH, WIDTH, HEADS, HIDDEN = 8, 2, 16, 4, 32


def gather_from_sequence_parallel_region(x: Tensor, dim: int) -> Tensor:
    return spmd.all_gather(x, "tp", src=spmd.S(dim), dst=spmd.R)  # backward: reduce-scatter


def reduce_scatter_to_sequence_parallel_region(x: Tensor, dim: int) -> Tensor:
    return spmd.reduce_scatter(x, "tp", src=spmd.P, dst=spmd.S(dim))  # backward: all-gather


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,)) * self.weight


class ColumnParallelLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs // spmd.axis_size("tp"), inputs) / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class RowParallelLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs // spmd.axis_size("tp")) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, sequence: int) -> Tensor:
        y = F.linear(x, self.weight) + self.bias
        return reduce_scatter_to_sequence_parallel_region(y, sequence)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = ColumnParallelLinear(WIDTH, 3 * WIDTH)
        self.proj = RowParallelLinear(WIDTH, WIDTH)

    def forward(self, x: Tensor, sequence: int) -> Tensor:
        x = gather_from_sequence_parallel_region(x, sequence)
        length, batch, _ = x.shape
        heads = self.qkv(x).view(length, batch, -1, 3, WIDTH // HEADS)
        q, k, v = heads.permute(3, 1, 2, 0, 4)  # each [batch, heads, length, head dim]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.permute(2, 0, 1, 3).reshape(length, batch, -1), sequence)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(WIDTH, HIDDEN)
        self.down = RowParallelLinear(HIDDEN, WIDTH)

    def forward(self, x: Tensor, sequence: int) -> Tensor:
        x = gather_from_sequence_parallel_region(x, sequence)
        return self.down(F.gelu(self.up(x)), sequence)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = Norm(), Attention(), Norm(), MLP()

    def forward(self, x: Tensor) -> Tensor:
        """x: [length, batch, width], cut along the length over tp."""
        x = x + self.attention(self.norm1(x), sequence=1)
        return x + self.mlp(self.norm2(x), sequence=0)


TYPES = {
    "norm1.weight": spmd.I,  # I: no code sums its gradient over tp
    "attention.qkv.weight": spmd.S(0),
    "attention.proj.weight": spmd.S(1),
    "attention.proj.bias": spmd.R,  # R: its gradient is summed over tp after backward
    "norm2.weight": spmd.I,
    "mlp.up.weight": spmd.S(0),
    "mlp.down.weight": spmd.S(1),
    "mlp.down.bias": spmd.R,
}


def train_step(block: Block, x: Tensor) -> Tensor:
    """One step of plain gradient descent; returns this rank's part of the loss."""
    for name, parameter in block.named_parameters():
        spmd.assert_type(parameter, {"tp": TYPES[name]})
    x = spmd.assert_type(x, {"tp": spmd.S(0)})
    loss = block(x).square().sum()
    loss = spmd.reinterpret(loss, "tp", src=spmd.V, dst=spmd.P)  # the sum over tp ranks is meant
    loss.backward()
    for name, parameter in block.named_parameters():
        if TYPES[name] is spmd.R:
            parameter.grad = spmd.all_reduce(parameter.grad, "tp", src=spmd.P, dst=spmd.R)
    torch.optim.SGD(block.parameters(), lr=0.01).step()
    return loss


if __name__ == "__main__":
    try:
        with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck(local="--dims" not in sys.argv) as report:
            train_step(Block(), torch.randn(LENGTH // 2, BATCH, WIDTH))
    except spmd.SpmdTypeError as error:
        sys.exit(str(error))
    print(report)
