"""`meshwright train --resume`, from the command line to the run folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.train.launch import parent
from tests.corpora import data_of

ROOT = Path(__file__).parents[3]
RECIPE = """
import os, signal
from meshwright.models.llama3 import Llama3
from meshwright.train.checkpoint import folder
from meshwright.train.config import *
from meshwright.train.data.config import DataConfig

publish = folder.publish

def killed(partial, marker):
    if marker.progress.step == 4 and "KILLED" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return publish(partial, marker)

folder.publish = killed
config = TrainConfig(
    model=Llama3(dim=32, layers=2, heads=8, kv_heads=4, hidden=48, vocab=320),
    parallel=ParallelConfig(dp_shard=2),
    training=TrainingConfig(steps=5, length=16, batch=4, validation_batches=1),
    data=DataConfig(**{data!r}),
    output=OutputConfig(folder={output!r}),
)
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    text = RECIPE.replace("{data!r}", repr(vars(data_of(folder)))).replace("{output!r}", repr(str(folder / "runs")))
    (folder / "mine.py").write_text(text)
    return folder / "mine.py"


def train(recipe, *arguments, **environment):
    command = [sys.executable, "-m", "meshwright", "train", str(recipe), *arguments]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment}
    return subprocess.run(command, cwd=recipe.parent, env=surroundings, capture_output=True, text=True)


def test_a_run_that_was_killed_amid_a_save_goes_on_in_its_folder_on_other_ranks(recipe):
    ended = train(recipe, "--checkpoint.every", "2", KILLED="yes")
    assert ended.returncode == 1
    assert "rank 0: died of SIGKILL" in ended.stderr
    (run,) = (recipe.parent / "runs").iterdir()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-2", "step-4.partial"]
    before = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in before] == [1, 2, 3, 4]

    ended = train(recipe, "--resume", "--parallel.tp", "2", "--parallel.dp-shard", "1")
    assert (ended.returncode, ended.stderr) == (0, "")
    said = ended.stdout.splitlines()
    assert f"checkpoints  every 2 steps, the newest 2, in {run}/checkpoints, as before" in said
    assert f"resumed      {run}/checkpoints/step-2, step 2 of dp_shard 2" in said
    assert [line.split(",")[0] for line in said if "saved" in line] == ["  saved step-4", "  saved step-5"]
    assert list((recipe.parent / "runs").iterdir()) == [run]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-4", "step-5"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5]
    assert records[:2] == before[:2]
    for record, true in zip(records[2:], before[2:], strict=False):
        assert record["loss"] == pytest.approx(true["loss"], rel=1e-5)
    assert [record["tokens"] for record in records] == [64, 128, 192, 256, 320]
    assert json.loads((run / "config.json").read_text())["parallel"]["tp"] == 2

    ended = train(recipe, "--resume")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: training.steps: 5 steps, and the checkpoint is of step 5")

    copy = recipe.parent / "copies" / "step-5"
    shutil.copytree(run / "checkpoints" / "step-5", copy)
    file = sorted(copy.glob("__0_*"))[0]
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    ended = train(recipe, "--resume", "copies/step-5", "--training.steps", "7")
    assert ended.returncode == 1
    assert (
        f"{copy.relative_to(recipe.parent)}: no whole checkpoint: {file.name} is not what was written" in ended.stderr
    )
    assert "logs:" not in ended.stderr
    assert list((recipe.parent / "runs").iterdir()) == [run], "a run that was refused leaves nothing"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume", "no/such/run"], "error: --resume: no/such/run does not exist"),
        (["--resume", "mine.py"], "error: --resume: mine.py is a file"),
        (["--resume", "--output.folder", "none"], "error: --resume: no run of mine in none"),
        (["--resume", "texts"], "error: --resume: no complete checkpoint in texts"),
        (
            ["--checkpoint.every", "2", "--checkpoint.folder", "mine.py"],
            "error: checkpoint.folder: nothing can be written to 'mine.py'",
        ),
        (["--checkpoint.every", "-1"], "error: checkpoint.every: -1"),
        (["--checkpoint.keep", "0"], "error: checkpoint.keep: 0"),
    ],
)
def test_what_cannot_be_is_said_before_a_process_starts(recipe, arguments, said, monkeypatch, capsys):
    monkeypatch.chdir(recipe.parent)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(parent, "launch", None)
    assert main(["train", "./mine.py", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith(said)
    assert len(told.splitlines()) <= 3
