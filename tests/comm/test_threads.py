"""Thread ranks exchange what process groups do, and say what went wrong where they do not meet."""

import threading
import time

import pytest
import torch

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import axis
from meshwright.comm.threads import run_ranks
from meshwright.comm.transport import Alone
from meshwright.errors import RunError

TWO = ParallelismDims(tp=2)
THREE = ParallelismDims(tp=3)


def test_results_come_in_rank_order():
    assert run_ranks(THREE, lambda rank: (rank, axis("tp").index)) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(("reduction", "expected"), [("sum", [3.0, 12.0]), ("max", [2.0, 6.0]), ("min", [0.0, 2.0])])
def test_reductions(reduction, expected):
    results = run_ranks(THREE, lambda rank: axis("tp").all_reduce(torch.tensor([rank, 2.0 * (rank + 1)]), reduction))
    assert [result.tolist() for result in results] == [expected] * 3


def test_sums_are_taken_in_rank_order():
    """(1e16 + 1) - 1e16 is 0 and (1e16 - 1e16) + 1 is 1: the order shows."""
    values = [1e16, 1.0, -1e16]
    results = run_ranks(THREE, lambda rank: axis("tp").all_reduce(torch.tensor(values[rank]).double()))
    assert [result.item() for result in results] == [0.0] * 3


def test_rows_of_any_number_are_exchanged():
    sends = [[2, 0, 1], [0, 3, 0], [1, 1, 1]]

    def exchange(rank):
        rows = torch.tensor([[rank, to] for to in range(3) for _ in range(sends[rank][to])]).reshape(-1, 2)
        return axis("tp").all_to_all(rows, [sends[source][rank] for source in range(3)], sends[rank])

    assert [rows.tolist() for rows in run_ranks(THREE, exchange)] == [
        [[0, 0], [0, 0], [2, 0]],
        [[1, 1], [1, 1], [1, 1], [2, 1]],
        [[0, 2], [2, 2]],
    ]


def test_what_is_sent_is_received_in_order():
    def pass_on(rank):
        group = axis("tp")
        if rank == 0:
            first, second = torch.ones(2), torch.zeros(2)
            group.send(first, 1)
            group.send(second, 1)
            first.fill_(7)
            return None
        return [group.recv(torch.empty(2), 0).tolist() for _ in range(2)]

    assert run_ranks(TWO, pass_on)[1] == [[1.0, 1.0], [0.0, 0.0]]


def test_a_rank_may_write_into_what_it_gave_as_soon_as_the_call_is_over():
    def program(rank):
        x = torch.full((1000,), float(rank))
        total = axis("tp").all_reduce(x)
        x.fill_(100.0)
        return total

    for _ in range(20):
        assert all(torch.equal(total, torch.full((1000,), 3.0)) for total in run_ranks(THREE, program))


def test_ranks_that_call_different_things_are_told_what_each_called():
    def mismatched(rank):
        group = axis("tp")
        return group.all_gather(torch.ones(2)) if rank else group.all_reduce(torch.ones(2))

    with pytest.raises(RunError, match=r"rank 0: all_reduce sum \(2,\).*rank 1: all_gather \(2,\)"):
        run_ranks(TWO, mismatched)


def test_ranks_that_bring_different_shapes_are_told_them():
    with pytest.raises(RunError, match=r"rank 0: all_reduce sum \(1,\).*rank 1: all_reduce sum \(2,\)"):
        run_ranks(TWO, lambda rank: axis("tp").all_reduce(torch.ones(rank + 1)))


def test_sizes_of_an_exchange_that_do_not_agree():
    with pytest.raises(RunError, match=r"expects \[1, 1\] rows and is sent"):
        run_ranks(TWO, lambda rank: axis("tp").all_to_all(torch.ones(3), [1, 1], [1, 2]))


def test_a_call_that_one_rank_does_not_make_is_an_error_not_a_hang():
    with pytest.raises(RunError, match=r"has ended or waits: rank 1: all_reduce .* on 'tp'"):
        run_ranks(TWO, lambda rank: axis("tp").all_reduce(torch.ones(1)) if rank else None)


def test_a_message_that_is_never_sent_is_an_error_not_a_hang():
    with pytest.raises(RunError, match="rank 1: recv from place 0 on 'tp'"):
        run_ranks(TWO, lambda rank: axis("tp").recv(torch.ones(1), 0) if rank else None)


def test_axes_taken_in_different_orders_are_an_error_not_a_hang():
    def program(rank):
        for name in ("dp", "tp") if rank in (0, 3) else ("tp", "dp"):
            axis(name).all_reduce(torch.ones(1))

    with pytest.raises(RunError, match=r"rank 0: .* on 'dp', rank 1: .* on 'tp'"):
        run_ranks(ParallelismDims(dp_shard=2, tp=2), program)


@pytest.mark.parametrize("wait", ["all_reduce", "recv"])
def test_a_rank_that_raises_lets_the_others_go_and_its_error_is_shown(wait):
    before = threading.active_count()

    def program(rank):
        if rank == 1:
            time.sleep(0.02)  # the others wait by then
            raise KeyError("the first cause")
        group = axis("tp")
        return group.all_reduce(torch.ones(1)) if wait == "all_reduce" else group.recv(torch.ones(1), 1)

    with pytest.raises(KeyError, match="the first cause"):
        run_ranks(THREE, program)
    assert threading.active_count() == before


def test_an_axis_of_one_rank_moves_nothing():
    x, group = torch.arange(4.0), Alone("tp")
    assert group.all_reduce(x) is x
    assert group.all_gather(x) is x
    assert group.reduce_scatter(x) is x
    assert group.all_to_all(x, [4], [4]) is x
    with pytest.raises(ValueError, match="nobody to send to"):
        group.send(x, 0)
    with pytest.raises(ValueError, match="nobody to receive from"):
        group.recv(x, 0)
