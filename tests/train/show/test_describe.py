"""What stands above a run is what the run is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.threads import run_ranks
from meshwright.train.assemble import run_dims
from meshwright.train.config import ComputeConfig, TrainingConfig
from meshwright.train.data import Corpus
from meshwright.train.show.describe import describe
from meshwright.train.show.run_folder import RunFolder
from meshwright.train.show.screen import short
from tests.parity.harness import laid_out, small
from tests.processes import ranks
from tests.train import step_programs as programs

CORPUS = Corpus(
    folder="",
    digest="",
    vocab_size=64,
    eos_id=0,
    train_tokens=12_000,
    train_documents=300,
    validation_tokens=500,
    validation_documents=10,
)
FOLDER = RunFolder(Path("runs/one"))


def described(config, corpus=CORPUS):
    dims = run_dims(config)

    def program(rank):
        run = programs.on_thread(rank, dims, config)
        held = sum(param.numel() for param in run.model.parameters())
        return describe(config, run, corpus, FOLDER), held

    return run_ranks(dims, program, {**DENSE, **WORLD})


def on_process(rank, config):
    run = programs.on_process(rank, config)
    held = sum(run.backend.storage.local(param).numel() for param in run.model.parameters())
    return describe(config, run, CORPUS, FOLDER)["parameters"], held


@pytest.mark.parametrize("parallel", [{}, {"tp": 2}, {"tp": 8}, {"dp_shard": 2, "tp": 4}], ids=str)
def test_parameters_are_counted_whole_and_as_a_rank_holds_them(parallel):
    whole = described(small())[0][1]
    found = described(laid_out(small(), **parallel))
    assert found[0][0]["parameters"] == f"{short(whole)}, at most {short(found[0][1])} on a rank"
    assert found[0][1] == max(held for _, held in found)


@pytest.mark.parametrize("parallel", [{"dp_shard": 4}, {"dp_replicate": 2, "tp": 2}, {"dp_shard": 2, "tp": 2}], ids=str)
def test_so_they_are_under_fsdp(parallel):
    found = ranks(4).run(on_process, laid_out(small(), **parallel))
    text, held = found[0]
    assert text.endswith(f"at most {short(held)} on a rank")
    assert held == max(other for _, other in found)


def test_layouts_are_those_of_the_run():
    config = laid_out(small(), dp_shard=2, tp=2)
    lines = described(config)[0][0]
    assert lines["layouts"] == "stream f32[4@dp, 16@tp, 32], logits f32[4@dp, 16, 64@tp]"
    config = laid_out(small(), tp=2, sequence_parallel=False)
    assert described(config)[0][0]["layouts"] == "stream f32[4, 16, 32]{tp:I}, logits f32[4, 16, 64@tp]"
    assert described(small())[0][0]["layouts"] == "stream f32[4, 16, 32], logits f32[4, 16, 64]"
    in_parts = replace(small(), compute=ComputeConfig(loss_chunks=4))
    assert described(in_parts)[0][0]["layouts"] == "stream f32[4, 16, 32], logits f32[4, 4, 64]"


def test_a_micro_batch_is_what_is_laid_out():
    config = small()
    config.training = TrainingConfig(steps=3, length=8, batch=6, accumulate=3)
    lines = described(config)[0][0]
    assert lines["layouts"].startswith("stream f32[2, 8, 32]")
    assert lines["steps"] == "3 of 6 x 8 tokens"


def test_model_mesh_data_and_folder():
    lines = described(laid_out(small(), dp_shard=2, tp=2))[0][0]
    assert lines["model"] == "Llama3: layers 2, dim 32, heads 8, kv_heads 4, hidden 48, vocab 64"
    assert lines["mesh"] == "dp_shard 2 x tp 2 = 4 ranks on cpu, backend spmd_types"
    assert lines["data"].startswith(f"{short(12_000)} tokens in {short(300)} documents")
    assert lines["run"] == "runs/one"


def test_data_that_the_run_goes_round_again():
    config = small()
    config.training = TrainingConfig(steps=30, length=8, batch=5)
    for tokens, documents, data in (
        (1200, 2, "1.2k tokens in 2 documents, 500 more for validation"),
        (400, 1, "400 tokens in 1 document, 500 more for validation; the run goes round them 3 times"),
    ):
        corpus = replace(CORPUS, train_tokens=tokens, train_documents=documents)
        assert described(config, corpus)[0][0]["data"] == data
