"""The further prediction is what its formulation says, one document at a time; its loss is added, and not shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from meshwright.models.block import SparseBlock
from meshwright.models.decoder import FURTHER
from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE, look_ahead
from meshwright.train.loss import token_losses
from tests.models.specs import small_deepseek_v3
from tests.parity.harness import alone_on_cpu, global_batch, one_device

WEIGHT = 0.7
SHAPES = {
    "experts": {},
    "charged for uneven loads": {"balance": "loss", "balance_rate": 0.5},
    "tied": {"tied": True},
    "no experts": {"dense_layers": 2},
}


def ahead(**numbers):
    return small_deepseek_v3(further=1, further_weight=WEIGHT, **numbers)


def packed(vocab):
    """Two rows of documents: of 5, 1, 2 and 4 tokens, and one of 12. Each token's label is the next of its document."""
    tokens = torch.randint(vocab, (2, 12), generator=torch.Generator().manual_seed(0))
    documents = torch.tensor([[0] * 5 + [1] + [2] * 2 + [3] * 4, [0] * 12])
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 0, 1, 0, 1, 2, 3], [*range(12)]])
    labels = torch.full_like(tokens, IGNORE)
    goes_on = documents[:, 1:] == documents[:, :-1]
    labels[:, :-1][goes_on] = tokens[:, 1:][goes_on]
    return Batch(tokens=tokens, labels=labels, positions=positions, documents=documents)


def plain(model, batch, stream):
    """The sum of the losses of the token after the next: h'_i = block(W [norm(h_i), norm(E[t_i+1])]) says t_i+2."""
    further, norm = model.further, lambda x, part: F.rms_norm(x, x.shape[-1:], part.weight, part.config.epsilon)
    losses = []
    for row in range(len(batch.tokens)):
        for number in batch.documents[row].unique():
            mine = batch.documents[row] == number
            tokens, h = batch.tokens[row, mine], stream[row, mine]
            if len(tokens) < 3:
                continue
            following = model.embedding.weight[tokens[1:-1]]
            both = torch.cat((norm(h[:-2], further.stream_norm), norm(following, further.ahead_norm)), -1)
            x = (both @ further.projection.weight.T).unsqueeze(0)
            out = further.block(x, *model.rope(torch.arange(len(tokens) - 2).unsqueeze(0)))
            y = (out[0] if isinstance(out, tuple) else out).squeeze(0)
            logits = norm(y, further.norm) @ model.head.weight.T
            losses.append(-logits.log_softmax(-1)[range(len(y)), tokens[2:]].sum())
    return sum(losses)


def gradients(model, loss):
    params = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(params.values()), retain_graph=True, allow_unused=True)
    return {name: grad for name, grad in zip(params, found, strict=True) if grad is not None}


@pytest.mark.parametrize("shape", ["experts", "tied", "no experts"])
def test_loss_and_gradients_equal_the_plain_formulation(shape):
    config = ahead(**SHAPES[shape])
    model = alone_on_cpu(config).model
    batch = packed(config.model.vocab)
    streams = []
    model.norm.register_forward_pre_hook(lambda module, args: streams.append(args[0]))
    loss, added = token_losses(model, None, *look_ahead(batch).fields)
    true = plain(model, batch, streams[0])
    assert torch.allclose(added, WEIGHT * true, rtol=1e-5)
    logits = model.norm(streams[0]) @ model.head.weight.T
    main = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE, reduction="sum")
    mine, theirs = gradients(model, loss + added), gradients(model, main + WEIGHT * true)
    assert mine.keys() == theirs.keys() == dict(model.named_parameters()).keys()
    for name, grad in theirs.items():
        assert (mine[name] - grad).norm() <= 1e-5 * grad.norm(), name


@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_that_is_shown_is_the_main_one(shape):
    with_it, without = ahead(**SHAPES[shape]), small_deepseek_v3(**SHAPES[shape])
    batches = [global_batch(without, seed) for seed in (0, 1)]
    mine, true = one_device(with_it, batches), one_device(without, batches)
    assert mine.loss == pytest.approx(true.loss, rel=1e-6)
    name = "blocks.0.attention.wkv_a.weight"
    assert (mine.grads[name] - true.grads[name]).norm() > 0.01 * true.grads[name].norm()


def test_it_is_divided_as_the_main_loss_is():
    """Twice the rows, all with nothing to say, change no gradient."""
    config = ahead(dense_layers=2)
    batch = global_batch(config)
    silent = replace(batch, labels=torch.full_like(batch.labels, IGNORE))
    mine, true = one_device(config, [batch, silent]), one_device(config, [batch])
    for name, grad in true.grads.items():
        assert torch.allclose(mine.grads[name], grad, atol=1e-6 * float(grad.abs().max())), name


def test_its_router_is_charged_and_counted_too():
    config = ahead(**SHAPES["charged for uneven loads"])
    model, batch = alone_on_cpu(config).model, global_batch(config)
    *_, before = token_losses(model, None, *batch.fields)
    *_, after = token_losses(model, None, *look_ahead(replace(batch, labels=batch.labels.fill_(IGNORE))).fields)
    assert after > before * 1.1
    chosen = batch.tokens.numel() * config.model.active
    assert {name: int(load.tokens.sum()) for name, load in model.loads.items()} == {"1": 2 * chosen, FURTHER: chosen}


def test_nothing_is_predicted_further_where_nothing_is_learned():
    config = ahead()
    model, batch = alone_on_cpu(config).model, global_batch(config)
    model.further.register_forward_pre_hook(lambda *args: pytest.fail("it ran"))
    _, added = token_losses(model, None, *batch.fields)
    assert added is None


@pytest.mark.parametrize(("dense_layers", "sparse"), [(1, True), (2, False)])
def test_its_block_is_like_the_last(dense_layers, sparse):
    modules = ahead(dense_layers=dense_layers).model.modules()
    assert modules.further.block == modules.blocks[-1]
    assert isinstance(modules.further.block, SparseBlock.Config) == sparse
    assert (FURTHER in modules.sparse()) == sparse


@pytest.mark.parametrize("further", [2, -1, 7])
def test_one_token_after_the_next_or_none(further):
    (problem,) = small_deepseek_v3(further=further).model.problems()
    assert (problem.where, problem.fix) == ("model.further", "--model.further 1")
    assert small_deepseek_v3(further=1).model.problems() == small_deepseek_v3(further=0).model.problems() == []


def test_a_weight_is_above_nothing():
    (problem,) = small_deepseek_v3(further=1, further_weight=0.0).model.problems()
    assert problem.where == "model.further_weight"
