"""Between backward and update: sums that are owed are made, every element is counted once, all are scaled alike."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from meshwright.comm.grid import ParallelismDims
from meshwright.errors import ConfigError
from meshwright.train.gradients import clip
from meshwright.types.kinds import I, P, R, S
from meshwright.types.planner import Transition
from tests.core.toys import holding
from tests.ranks import on_ranks

TP = ParallelismDims(tp=2)
DATA = {"dp": R, "cp": R}
SPLIT, OWED, SAME = {**DATA, "tp": S(0)}, {**DATA, "tp": R}, {**DATA, "tp": I}


def finished(dims, config, given, before=lambda module: None):
    """Gradients by name after the sums and their total norm, on each rank. given(rank): name -> gradient, or None."""

    def program(member):
        for name, values in given(member.rank).items():
            member.module.get_parameter(name).grad = None if values is None else torch.tensor(values)
        gradients = member.gradients()
        found = gradients.finish()
        named = {name: param.grad.tolist() for name, param in member.module.named_parameters() if param.requires_grad}
        assert str([grad.tolist() for grad in found]) == str(list(named.values()))  # as text: nan is not nan
        return named, gradients.total_norm(found).item()

    return on_ranks(dims, config, program, before=before)


class TestSums:
    def test_a_gradient_of_r_is_a_sum_still_to_be_made_and_one_of_i_or_s_is_not(self):
        config = holding(
            {"owed": (2,), "same": (2,), "split": (4,)},
            state_shardings={"owed": OWED, "same": SAME, "split": SPLIT},
        )
        given = {"owed": [1.0, 2.0], "same": [1.0, 2.0], "split": [1.0, 2.0]}
        for grads, _ in finished(TP, config, lambda rank: given):
            assert grads == {"owed": [2.0, 4.0], "same": [1.0, 2.0], "split": [1.0, 2.0]}

    def test_it_is_summed_over_exactly_the_axes_on_which_it_is_r(self):
        """Rank r of dp 2 x tp 2 adds 10 ** r."""
        layouts = {
            "both": OWED,
            "dp": SAME,
            "tp": {"dp": I, "cp": R, "tp": R},
            "none": {"dp": I, "cp": R, "tp": I},
        }
        config = holding(dict.fromkeys(layouts, (1,)), state_shardings=layouts)
        found = finished(
            ParallelismDims(dp_shard=2, tp=2), config, lambda rank: {name: [10.0**rank] for name in layouts}
        )
        for rank, (grads, _) in enumerate(found):
            assert grads["both"] == [1111.0]
            assert grads["dp"] == [[101.0], [1010.0]][rank % 2]
            assert grads["tp"] == [[11.0], [1100.0]][rank // 2]
            assert grads["none"] == [10.0**rank]

    def test_what_counts_is_the_layout_at_rest(self):
        config = holding({"bias": (1,)}, state_shardings={"bias": Transition(OWED, {**DATA, "tp": P})})
        assert [grads["bias"] for grads, _ in finished(TP, config, lambda rank: {"bias": [2.0 * rank]})] == [[2.0]] * 2

    def test_neighbours_that_share_heads_share_their_gradient(self):
        config = holding({"kv": (2,)}, state_shardings={"kv": {**DATA, "tp_kv": S(0), "tp_copy": R}})
        found = finished(ParallelismDims(tp=4, tp_copy=2), config, lambda rank: {"kv": [rank + 1.0]})
        assert [grads["kv"] for grads, _ in found] == [[3.0], [3.0], [7.0], [7.0]]

    @pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
    def test_any_shape_and_dtype(self, shape):
        def halve(module):
            module.short = nn.Parameter(module.short.to(torch.bfloat16))

        config = holding({"full": shape, "short": shape}, state_shardings={"full": OWED, "short": OWED})

        def program(member):
            for param in member.module.parameters():
                param.grad = torch.full(shape, member.rank + 1.0, dtype=param.dtype)
            grads = member.gradients().finish()
            return [(grad.dtype, set(grad.flatten().tolist())) for grad in grads]

        expected = [(torch.float32, {3.0}), (torch.bfloat16, {3.0})]
        assert on_ranks(TP, config, program, before=halve) == [expected] * 2

    def test_gradients_are_summed_where_they_are(self):
        """The optimizer reads param.grad."""
        config = holding({"owed": (2, 3)}, state_shardings={"owed": OWED})

        def program(member):
            param = member.module.owed
            param.grad = torch.ones(3, 2).t()  # does not lie end to end
            (grad,) = member.gradients().finish()
            return grad.data_ptr() == param.grad.data_ptr(), param.grad.tolist()

        assert on_ranks(TP, config, program) == [(True, [[2.0] * 3] * 2)] * 2


class TestMissing:
    CONFIG = holding({"used": (2,), "unused": (2,)}, state_shardings={"used": OWED, "unused": OWED})

    @pytest.mark.parametrize("users", [(0,), (1,), (), (0, 1)])
    def test_a_rank_without_a_gradient_joins_with_zeros(self, users):
        found = finished(
            TP, self.CONFIG, lambda rank: {"used": [1.0, 1.0], "unused": [3.0, 0.0] if rank in users else None}
        )
        expected = {"used": [2.0, 2.0], "unused": [3.0 * len(users), 0.0]}
        for grads, norm in found:
            assert grads == expected
            assert norm == pytest.approx(math.hypot(*expected["used"], *expected["unused"]))
        assert found[0] == found[1]

    def test_a_frozen_parameter_has_no_gradient_and_is_not_counted(self):
        found = finished(
            TP,
            self.CONFIG,
            lambda rank: {"used": [3.0, 4.0]},
            before=lambda module: module.unused.requires_grad_(False),
        )
        assert found == [({"used": [6.0, 8.0]}, 10.0)] * 2

    def test_where_all_is_frozen_there_is_nothing_to_train(self):
        with pytest.raises(ConfigError, match="every parameter is frozen"):
            finished(TP, self.CONFIG, lambda rank: {}, before=lambda module: module.requires_grad_(False))


class TestNorm:
    @pytest.mark.parametrize(("whole", "parts"), [(SAME, [12.0, 12.0]), (OWED, [5.0, 7.0])])
    def test_sharded_parts_are_summed_and_what_all_hold_is_counted_once(self, whole, parts):
        config = holding({"split": (4,), "whole": (1,)}, state_shardings={"split": SPLIT, "whole": whole})
        found = finished(TP, config, lambda rank: {"split": [[3.0, 0.0], [0.0, 4.0]][rank], "whole": [parts[rank]]})
        assert [norm for _, norm in found] == [13.0, 13.0]

    @pytest.mark.parametrize(
        "dims", [ParallelismDims(dp_shard=2), ParallelismDims(dp_shard=2, tp=2), ParallelismDims(tp=4, tp_copy=2)]
    )
    def test_it_is_that_of_the_whole_gradient_however_it_lies(self, dims):
        layouts = {
            "both": {"dp": S(0), "cp": R, "tp": S(1)},
            "rows": {"dp": I, "cp": R, "tp": S(0)},
            "kv": {"dp": I, "cp": R, "tp_kv": S(1), "tp_copy": I},
            "whole": {"dp": I, "cp": R, "tp": I},
        }
        config = holding(dict.fromkeys(layouts, (4, 4)), state_shardings=layouts)
        full = {name: torch.randn(4, 4, generator=torch.Generator().manual_seed(i)) for i, name in enumerate(layouts)}

        def program(member):
            for name, param in member.module.named_parameters():
                info, storage = member.states[name], member.backend.storage
                spans = [info.stored.span(dim, 4, storage.degree, storage.index) for dim in range(2)]
                param.grad = full[name][tuple(slice(span.start, span.stop) for span in spans)].clone()
            gradients = member.gradients()
            return gradients.total_norm(gradients.finish()).item()

        expected = torch.stack([grad.double().square().sum() for grad in full.values()]).sum().sqrt().item()
        found = on_ranks(dims, config, program)
        assert len(set(found)) == 1
        assert found[0] == pytest.approx(expected, rel=1e-6)

    def test_what_is_tied_is_counted_once(self):
        def tie(module):
            module.other = module.one

        config = holding({"one": (2,), "other": (2,)}, state_shardings={"one": SAME, "other": SAME})
        assert [norm for _, norm in finished(TP, config, lambda rank: {"one": [3.0, 4.0]}, before=tie)] == [5.0] * 2

    def test_an_empty_shard_counts_nothing(self):
        config = holding({"w": (1,), "empty": (0,)}, state_shardings={"w": SAME, "empty": SPLIT})
        assert [norm for _, norm in finished(TP, config, lambda rank: {"w": [2.0], "empty": []})] == [2.0] * 2

    @pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
    def test_what_is_not_finite_on_one_rank_shows_on_all(self, broken):
        config = holding({"split": (4,)}, state_shardings={"split": SPLIT})
        found = finished(TP, config, lambda rank: {"split": [broken if rank else 1.0, 1.0]})
        assert not any(math.isfinite(norm) for _, norm in found)


class TestClip:
    @pytest.mark.parametrize(("limit", "factor"), [(10.0, 1.0), (5.0, 1.0), (2.5, 0.5), (0.5, 0.1), (math.inf, 1.0)])
    def test_all_are_scaled_alike_and_never_up(self, limit, factor):
        grads = [torch.tensor([3.0]), torch.tensor([[4.0, 0.0]])]
        clip(grads, torch.tensor(5.0, dtype=torch.float64), limit)
        assert grads[0].item() == pytest.approx(3 * factor)
        assert grads[1][0].tolist() == pytest.approx([4 * factor, 0.0])

    def test_zero_stays_zero(self):
        grads = [torch.zeros(3)]
        clip(grads, torch.tensor(0.0, dtype=torch.float64), 1.0)
        assert grads[0].tolist() == [0.0] * 3

    def test_after_it_the_norm_is_the_limit(self):
        grads = [torch.randn(7, generator=torch.Generator().manual_seed(0)) for _ in range(3)]
        norm = torch.cat(grads).double().norm()
        clip(grads, norm, norm.item() / 3)
        assert torch.cat(grads).norm().item() == pytest.approx(norm.item() / 3, rel=1e-6)
