"""Case 44: a run that is killed amid a save goes on from the last save that came to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from meshwright.errors import ConfigError
from meshwright.train.checkpoint.folder import checkpoints_in
from meshwright.train.checkpoint.marker import MARKER, read_marker
from meshwright.train.checkpoint.resume import find
from tests.parity.harness import global_batch, laid_out, small
from tests.train.checkpoint import kill_program, programs
from tests.train.checkpoint.layouts import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ROOT = Path(__file__).parents[3]
RENAMED = ("right after the rename", "before the old one is removed", "once the old one has lost its name")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder with a run folder for each point at which a run was killed."""
    folder = tmp_path_factory.mktemp("killed")
    program = [sys.executable, kill_program.__file__, str(folder), *kill_program.POINTS]
    ended = subprocess.run(program, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, text=True)
    assert ended.returncode == 0
    return folder


@pytest.fixture(scope="module")
def true(tmp_path_factory):
    """The records of the run that was not killed, and what it held at its end."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "checkpoints").mkdir()
    corpus = programs.numbered(16, kill_program.LENGTH)
    records, _, held = programs.trained(0, kill_program.recipe(), corpus, str(folder))
    return [record.loss for record in records], held


@pytest.mark.parametrize("point", kill_program.POINTS)
def test_the_last_whole_checkpoint_is_there_and_goes_on_as_if_nothing_had_been(killed, true, point):
    run = killed / point
    newest = checkpoints_in(run / "checkpoints")[-1]
    step = 2 if point in RENAMED else 1
    assert read_marker(newest).progress.step == step

    corpus = programs.numbered(16, kill_program.LENGTH)
    records, _, held = programs.trained(0, kill_program.recipe(), corpus, str(run), str(newest))
    losses, whole = true
    assert [record.loss for record in records] == losses[step:]
    assert all(torch.equal(held[name][2], value) for name, (_, _, value) in whole.items())
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-3"], "what was left unfinished is gone"


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"tp": 2}], ids=str)
@pytest.mark.parametrize("full", [0, 1])
def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_all_as_it_was(layout, full, tmp_path):
    config = laid_out(small(), **layout)
    batches = [global_batch(small(), seed) for seed in range(3)]
    (tmp_path / "failing").mkdir()
    found = on_ranks(config, programs.save_without_room, config, str(tmp_path / "failing"), batches, full)
    assert len({(failed.kind, failed.said) for failed in found}) == 1
    assert found[0].kind == "RunError"
    assert found[0].said.startswith(f"checkpoint of step 2: not saved: rank {full}: File too large")
    assert "step-1 is whole: --resume goes on from it" in found[0].said
    for failed in found:
        assert failed.unchanged
        assert failed.left == ["step-1"]
    assert [path.name for path in checkpoints_in(tmp_path / "failing")] == ["step-1", "step-3"]

    (tmp_path / "whole").mkdir()
    true = on_ranks(config, programs.save_without_room, config, str(tmp_path / "whole"), batches, -1)
    assert [failed.losses for failed in found] == [failed.losses for failed in true]
    assert true[0].kind == ""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint of two ranks."""
    folder, config = tmp_path_factory.mktemp("damaged"), TestDamaged.CONFIG
    on_ranks(config, programs.save_after, [(config, str(folder))], [global_batch(small())])
    return folder / "step-1"


class TestDamaged:
    """A checkpoint that is not what was written is refused, and no weight is touched."""

    CONFIG = laid_out(small(), dp_shard=2)

    def refused(self, checkpoint):
        found = on_ranks(self.CONFIG, programs.load_error, self.CONFIG, str(checkpoint))
        assert len(set(found)) == 1, "all ranks say the same"
        kind, said, unchanged = found[0]
        assert kind == "ConfigError"
        assert unchanged
        assert said.startswith(f"{checkpoint}: no whole checkpoint: ")
        return said

    def test_one_bit_of_one_file(self, written):
        for file in written.iterdir():
            if file.name == MARKER:
                continue
            intact = file.read_bytes()
            file.write_bytes(intact[:-9] + bytes([intact[-9] ^ 1]) + intact[-8:])
            assert f"{file.name} is not what was written" in self.refused(written)
            file.write_bytes(intact)

    def test_a_file_that_is_gone_or_short(self, written):
        for file in written.iterdir():
            intact = file.read_bytes()
            file.unlink()
            assert f"{file.name} is missing" in self.refused(written)
            file.write_bytes(intact[: len(intact) // 2])
            short = (
                "cannot be understood" if file.name == MARKER else f"has {len(intact) // 2} bytes, not {len(intact)}"
            )
            assert f"{file.name} {short}" in self.refused(written)
            file.write_bytes(intact)

    def test_restored_it_loads(self, written):
        kind, _, unchanged = on_ranks(self.CONFIG, programs.load_error, self.CONFIG, str(written))[0]
        assert (kind, unchanged) == ("", False)


def test_what_was_not_finished_is_never_taken(killed):
    for point in kill_program.POINTS:
        for partial in (killed / point / "checkpoints").glob("*.partial"):
            config = kill_program.recipe()
            config.checkpoint.resume = str(partial)
            with pytest.raises(ConfigError, match="a save that did not come to its end"):
                find(config, "mine")
