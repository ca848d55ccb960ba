"""With the sequence split over cp each rank attends with its own queries to the keys of all."""

from __future__ import annotations

import pytest
import torch

from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.models.attention import Visible
from meshwright.train.assemble import assemble, local_backend, run_dims
from tests.parity.harness import alone_on_cpu, laid_out, small

LENGTH = 16


@pytest.mark.parametrize("layout", [{"cp": 2}, {"cp": 4}, {"cp": 2, "tp": 2}], ids=str)
def test_logits_without_documents_are_those_of_one_device(layout):
    config = laid_out(small(), **layout)
    dims = run_dims(config)
    tokens = torch.randint(config.model.vocab, (3, LENGTH), generator=torch.Generator().manual_seed(1))

    def logits(rank: int) -> torch.Tensor:
        view = current_mesh()
        assert view is not None
        run = assemble(config, local_backend(dims, rank, view), view["world"], torch.device("cpu"))
        with torch.no_grad():
            return run.model(tokens.chunk(dims.cp, 1)[view["cp"].index])

    parts = run_ranks(dims, logits, {**DENSE, **WORLD})
    of_cp = [torch.cat(parts[i * dims.tp : (i + 1) * dims.tp], 2) for i in range(dims.cp)]
    with torch.no_grad():
        true = alone_on_cpu(config).model(tokens)
    assert (torch.cat(of_cp, 1) - true).abs().max() < 1e-5 * true.abs().max()


def test_a_query_sees_its_own_document_up_to_its_own_position_wherever_they_stand():
    documents, positions = torch.tensor([[0] * 5 + [1] * 11]), torch.tensor([[*range(5), *range(11)]])
    whole = Visible.Config().build()(documents, positions, documents, positions)
    by_hand = [[documents[0, q] == documents[0, k] and k <= q for k in range(LENGTH)] for q in range(LENGTH)]
    assert whole[0, 0].tolist() == by_hand
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(2))
    mine, keys = order[:6], order
    part = Visible.Config().build()(documents[:, mine], positions[:, mine], documents[:, keys], positions[:, keys])
    assert torch.equal(part[0, 0], whole[0, 0][mine][:, keys])
