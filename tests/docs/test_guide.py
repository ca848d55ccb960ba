"""The guide's programs print what it shows, and its walk through the example goes as it is told."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.threads import run_ranks
from meshwright.types.kinds import I, P, R, S, Shard
from tests.docs.fenced import blocks, run

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide.md").read_text()
EXAMPLE = "docs/examples/megatron_block.py"
BEFORE, WALK, AFTER = re.split(r"(<!-- walk -->.*?)(?=^## )", GUIDE, flags=re.DOTALL | re.MULTILINE)
PROGRAMS = [
    (language, text, *shown)
    for section in (BEFORE, AFTER)
    for (language, text), shown in zip(blocks(section), [*blocks(section)[1:], ()], strict=True)
    if language == "python"
]


@pytest.fixture(autouse=True)
def reader(tmp_path, monkeypatch):
    """A folder in which a reader has the example."""
    (tmp_path / EXAMPLE).parent.mkdir(parents=True)
    (tmp_path / EXAMPLE).write_text((ROOT / EXAMPLE).read_text())
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("program", PROGRAMS, ids=[f"program {n}" for n in range(len(PROGRAMS))])
def test_every_program_prints_what_is_shown(program, capsys):
    _, text, language, shown = program
    assert language == "text"
    run("program.py", text)
    assert capsys.readouterr().out == shown


def patched(text: str, diff: str) -> str:
    """The program after a diff of whole lines, which are in it once."""
    before, after = (
        "".join(line[1:] + "\n" for line in diff.splitlines() if line.startswith(sign)) for sign in ("-", "+")
    )
    assert text.count(before) == 1
    return text.replace(before, after)


def said(command: str, monkeypatch, capsys) -> str:
    """What `python file arguments` prints."""
    python, file, *arguments = shlex.split(command)
    assert python == "python"
    monkeypatch.setattr(sys, "argv", [file, *arguments])
    try:
        run(file, Path(file).read_text())
    except SystemExit as ended:
        return f"{ended.code}\n"
    return capsys.readouterr().out


def test_the_walk_goes_as_it_is_told(monkeypatch, capsys):
    steps = blocks(WALK)
    errors = [text for language, text in steps if language == "text" and "[MW" in text]
    assert [re.search(r"\[(MW\d+)\]", error)[1] for error in errors] == ["MW102", "MW110", "MW105"]
    for (language, text), (_, shown) in zip(steps, [*steps[1:], ("", "")], strict=True):
        if language == "sh":
            assert said(text, monkeypatch, capsys) == shown
        elif language == "diff":
            Path(EXAMPLE).write_text(patched(Path(EXAMPLE).read_text(), text))


def test_a_printed_fix_is_what_the_diff_pastes():
    steps = blocks(WALK)
    pasted = 0
    for (language, text), (following, diff) in pairwise(steps):
        if language == "text" and following == "diff":
            types = re.search(r"fix: .*?(src=.*?, dst=\w+)", text)[1]
            added = "".join(line for line in diff.splitlines() if line.startswith("+"))
            pasted += types in added.replace("spmd.", "")
    assert pasted == 2  # the third names the dim that is handed on


DIFFS = [text for language, text in blocks(WALK) if language == "diff"]


def stepped(diffs: list[str], tp: int) -> dict[str, torch.Tensor]:
    """Loss, gradients and updated weights over all ranks of the example after some of the guide's diffs."""
    text = (ROOT / EXAMPLE).read_text()
    for diff in diffs:
        text = patched(text, diff)
    Path("block.py").write_text(text)
    example = runpy.run_path("block.py")
    types = example["TYPES"]
    shapes = {"norm": (16,), "qkv": (48, 16), "proj.weight": (16, 16), "up": (32, 16), "down.weight": (16, 32)}
    generator = torch.Generator().manual_seed(0)
    whole = {
        name: torch.randn(next((shapes[key] for key in shapes if key in name), (16,)), generator=generator).double()
        for name in types
    }
    tokens = torch.randn(8, 2, 16, generator=generator).double()

    def program(rank: int) -> dict[str, torch.Tensor]:
        block = example["Block"]().double()
        place = int(rank)
        mine = {
            name: value.chunk(tp, types[name].dim)[place] if isinstance(types[name], Shard) else value
            for name, value in whole.items()
        }
        block.load_state_dict(mine)
        loss = example["train_step"](block, tokens.chunk(tp)[place])
        named = dict(block.named_parameters())
        return {
            "loss": loss.detach(),
            **{f"{name} gradient": each.grad for name, each in named.items()},
            **{name: each.detach() for name, each in named.items()},
        }

    ranks = run_ranks(ParallelismDims(tp=tp), program)
    return {key: joined(types.get(key.removesuffix(" gradient"), P), [each[key] for each in ranks]) for key in ranks[0]}


def joined(kind, parts: list[torch.Tensor]) -> torch.Tensor:
    """The value that the ranks' tensors denote; of what all should hold alike, all of them."""
    if isinstance(kind, Shard):
        return torch.cat(parts, kind.dim)
    return torch.stack(parts).sum(0) if kind is P else torch.stack(parts)


def agree(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(one[key].expand_as(other[key]), other[key], rtol=1e-10, atol=1e-10) for key in one)


@pytest.mark.parametrize("tp", [2, 4])
def test_the_mended_block_is_that_of_one_device(tp):
    assert agree(stepped(DIFFS, 1), stepped(DIFFS, tp))


@pytest.mark.parametrize("left_out", range(3))
def test_each_mistake_alone_makes_another_model_or_other_gradients(left_out):
    diffs = [diff for n, diff in enumerate(DIFFS) if n != left_out]
    assert agree(stepped(diffs, 1), stepped(DIFFS, 1))
    assert not agree(stepped(DIFFS, 1), stepped(diffs, 2))


def test_with_all_three_it_runs_on_two_ranks_and_every_shape_fits():
    assert not agree(stepped(DIFFS, 1), stepped([], 2))


def test_the_cross_entropy_over_a_split_vocabulary_is_that_of_one_device():
    (text,) = [text for language, text in blocks(GUIDE) if "def vocab_parallel_cross_entropy" in text]
    Path("loss.py").write_text(text)
    split = runpy.run_path("loss.py")["vocab_parallel_cross_entropy"]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 16, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, 16, (6,), generator=generator)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, logits)

    def program(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        mine = logits.detach().chunk(4, 1)[int(rank)].clone().requires_grad_()
        found = split(mine, labels)
        return found.detach(), torch.autograd.grad(found, mine)[0]

    ranks = run_ranks(ParallelismDims(tp=4), program)
    assert all(torch.allclose(found, loss) for found, _ in ranks)
    assert torch.allclose(torch.cat([each for _, each in ranks], 1), gradient)


def test_the_mappings_do_what_their_rows_say():
    rows = re.findall(
        r"^\|[^|]*\| `\w+\(\w+, \"tp\", src=(\S+), dst=(\S+)\)` \| (\w+) \| (\w+) \|$", GUIDE, re.MULTILINE
    )
    kinds = {"R": R, "I": I, "P": P, **{f"S({dim})": S(dim) for dim in range(3)}}
    assert len(rows) == 13
    for src, dst, forward, backward in rows:
        step = spmd.step("tp", kinds[src], kinds[dst])
        assert (step.op.value, step.backward.op.value) == (forward, backward)


def test_every_link_leads_somewhere():
    targets = re.findall(r"\]\(([^)#]+)\)", GUIDE)
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []
