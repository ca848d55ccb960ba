"""Which checkpoint `--resume` means."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from meshwright.errors import ConfigError
from meshwright.train.checkpoint.keeper import Keeper
from meshwright.train.checkpoint.resume import NEWEST, Resumed, expand, find, inherit, open_run
from meshwright.train.config import CheckpointConfig, OutputConfig
from meshwright.train.show.run_folder import RunFolder
from tests.parity.harness import small
from tests.train.checkpoint.test_folder import saved


def config(output, resume=NEWEST, every=1, folder=None):
    own = CheckpointConfig(every=every, resume=resume and str(resume), folder=folder and str(folder))
    return replace(small(), output=OutputConfig(folder=str(output)), checkpoint=own)


def run_of(output, name, *steps):
    folder = output / name
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for step in steps:
        saved(folder / "checkpoints", step)
    return folder


def found(*args, **kwargs):
    resumed = find(config(*args, **kwargs), "mine")
    return resumed.checkpoint, resumed.run


def refused(*args, **kwargs):
    with pytest.raises(ConfigError) as error:
        find(config(*args, **kwargs), "mine")
    (problem,) = error.value.problems
    assert problem.where == "--resume"
    return problem


class TestFlag:
    @pytest.mark.parametrize(
        ("arguments", "meant"),
        [
            (["mine"], ["mine"]),
            (["mine", "--resume"], ["mine", "--checkpoint.resume", NEWEST]),
            (["mine", "--resume", "--model.dim", "3"], ["mine", "--checkpoint.resume", NEWEST, "--model.dim", "3"]),
            (["mine", "--resume", "runs/a"], ["mine", "--checkpoint.resume", "runs/a"]),
            (["mine", "--resume=runs/a", "--x"], ["mine", "--checkpoint.resume", "runs/a", "--x"]),
            (["mine", "--resumed"], ["mine", "--resumed"]),
        ],
    )
    def test_it_is_short_for_a_field(self, arguments, meant):
        assert expand(arguments) == meant


class TestHome:
    """`~` is the user's own folder, in whatever names one."""

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)

    def test_a_folder_of_its_own_is_found_where_it_was_made(self, tmp_path):
        open_run(config(tmp_path, None, folder="~/kept"), "mine", None)
        assert (tmp_path / "kept").is_dir()
        checkpoint, _ = saved(tmp_path / "kept", 3)
        assert found(tmp_path, folder="~/kept") == (checkpoint, None)

    def test_so_are_the_runs(self, tmp_path):
        run = open_run(config("~/runs", None), "mine", None)
        assert run.path.parent == tmp_path / "runs"
        checkpoint, _ = saved(run.path / "checkpoints", 2)
        assert found("~/runs") == (checkpoint, run.path)
        assert not (tmp_path / "~").exists()


class TestNewest:
    def test_without_it_a_run_begins(self, tmp_path):
        run_of(tmp_path, "mine-20310101-000000", 1)
        assert find(config(tmp_path, resume=None), "mine") is None

    def test_it_is_that_of_the_newest_run_of_the_recipe(self, tmp_path):
        run_of(tmp_path, "mine-20310101-000000", 90)
        run_of(tmp_path, "mine-20310102-000000-2", 80)
        newest = run_of(tmp_path, "mine-20310102-000000-10", 9, 10)
        run_of(tmp_path, "mine-too-20310103-000000", 5)
        run_of(tmp_path, "other-20310103-000000", 5)
        assert found(tmp_path) == (newest / "checkpoints" / "step-10", newest)

    def test_where_that_has_none_it_is_an_error_with_a_word_on_an_older_one(self, tmp_path):
        older = run_of(tmp_path, "mine-20310101-000000", 4)
        newest = run_of(tmp_path, "mine-20310102-000000")
        problem = refused(tmp_path)
        assert problem.what == f"no complete checkpoint in {newest}"
        assert problem.fix == f"--resume {older}"

    def test_where_there_is_no_run(self, tmp_path):
        assert refused(tmp_path / "nowhere").what == f"no run of mine in {tmp_path / 'nowhere'}"

    def test_in_a_checkpoint_folder_of_its_own(self, tmp_path):
        run_of(tmp_path, "mine-20310101-000000", 4)
        saved(tmp_path, 7)
        assert found(tmp_path, folder=tmp_path) == (tmp_path / "step-7", None)
        assert "no complete checkpoint" in refused(tmp_path, folder=tmp_path / "empty").what

    def test_one_that_is_damaged_is_not_passed_over(self, tmp_path):
        newest = run_of(tmp_path, "mine-20310101-000000", 4, 5)
        (newest / "checkpoints" / "step-5" / "data").unlink()
        with pytest.raises(ConfigError, match="step-5: no whole checkpoint: data is missing"):
            find(config(tmp_path), "mine")


class TestPath:
    def test_of_a_run_folder(self, tmp_path):
        run = run_of(tmp_path, "anything", 4, 5)
        assert found(tmp_path, run) == (run / "checkpoints" / "step-5", run)

    def test_of_its_checkpoints(self, tmp_path):
        run = run_of(tmp_path, "anything", 4, 5)
        assert found(tmp_path, run / "checkpoints") == (run / "checkpoints" / "step-5", run)

    def test_of_a_checkpoint_which_begins_a_run_of_its_own(self, tmp_path):
        run = run_of(tmp_path, "anything", 4, 5)
        assert found(tmp_path, run / "checkpoints" / "step-4") == (run / "checkpoints" / "step-4", None)

    def test_that_leads_to_none(self, tmp_path):
        run = run_of(tmp_path, "anything")
        (tmp_path / "file").write_text("")
        (run / "checkpoints" / "step-3.partial").mkdir()
        assert refused(tmp_path, run).what == f"no complete checkpoint in {run / 'checkpoints'}"
        assert refused(tmp_path, tmp_path / "no").what == f"{tmp_path / 'no'} does not exist"
        assert refused(tmp_path, tmp_path / "file").what == f"{tmp_path / 'file'} is a file"
        assert "did not come to its end" in refused(tmp_path, run / "checkpoints" / "step-3.partial").what

    def test_of_a_checkpoint_that_was_given_another_name(self, tmp_path):
        (tmp_path / "made").mkdir()
        whole, _ = saved(tmp_path / "made", 4)
        bad = whole.rename(whole.with_name("bad"))
        for path in (bad, bad.parent):
            problem = refused(tmp_path, path)
            assert problem.what == f"{bad} is a checkpoint, but its name is not step-4"
            assert "step-N" in problem.why
            assert problem.fix == f"mv {bad} {whole}, then --resume {whole}"
        whole.mkdir()
        subprocess.run(refused(tmp_path, bad).fix.partition(", then")[0], shell=True, check=True)
        assert found(tmp_path, whole.parent / "other" / "step-4")[0].is_dir()

    def test_that_cannot_be_read(self, tmp_path):
        run = run_of(tmp_path, "anything")
        (run / "checkpoints").rmdir()
        (run / "checkpoints").write_text("")
        assert refused(tmp_path, run).what == f"{run / 'checkpoints'} cannot be read: Not a directory"


class TestWhatGoesOn:
    """What a run kept, where the command line does not say it."""

    COURSE = {"steps": 10, "every": 5, "keep": 3}  # noqa: RUF012

    def resumed(self, tmp_path, folder=None, **course):
        (tmp_path / "kept").mkdir()
        _, marker = saved(tmp_path / "kept", 5)
        return Resumed(tmp_path / "kept" / "step-5", replace(marker, course={**self.COURSE, **course}), None, folder)

    def test_it_is_what_is_not_said(self, tmp_path):
        resumed = self.resumed(tmp_path, folder="kept")
        every, keep, folder = (["--checkpoint.every", "5"], ["--checkpoint.keep", "3"], ["--checkpoint.folder", "kept"])
        assert inherit(["mine"], resumed) == ["mine", *every, *keep, *folder]
        assert inherit(["mine", "--checkpoint.every", "0"], resumed) == [
            "mine",
            "--checkpoint.every",
            "0",
            *keep,
            *folder,
        ]
        assert inherit(["mine", "--checkpoint.folder=x"], resumed) == ["mine", "--checkpoint.folder=x", *every, *keep]
        assert inherit(["mine"], None) == ["mine"]

    def test_the_head_of_the_screen_says_so(self, tmp_path):
        told = Keeper(folder=tmp_path, every=5, keep=3, last=10)
        assert told.describe(self.COURSE)["checkpoints"].endswith(f"in {tmp_path}, as before")
        for before in (None, {}, {**self.COURSE, "every": 4}):
            assert told.describe(before)["checkpoints"].endswith(f"in {tmp_path}")

    def test_so_it_says_that_the_curve_of_the_rate_is_another(self, tmp_path):
        resumed = self.resumed(tmp_path)
        assert resumed.describe(10)["resumed"].endswith(", step 5 of one rank")
        assert resumed.describe(20)["resumed"].endswith("; the rate follows the curve of 20 steps now, 10 before")

    def test_a_run_with_a_folder_of_its_own_for_checkpoints_goes_on_there(self, tmp_path):
        run = run_of(tmp_path / "runs", "mine-20310101-000000")
        (tmp_path / "kept").mkdir()
        saved(tmp_path / "kept", 5)
        (run / "config.json").write_text(json.dumps({"checkpoint": {"folder": str(tmp_path / "kept")}}))
        for wanted in (NEWEST, run):
            resumed = find(config(tmp_path / "runs", wanted), "mine")
            assert (resumed.checkpoint, resumed.run) == (tmp_path / "kept" / "step-5", run)
            assert resumed.folder == str(tmp_path / "kept")

    def test_a_folder_of_checkpoints_goes_on_and_one_of_them_begins_anew(self, tmp_path):
        (tmp_path / "kept").mkdir()
        saved(tmp_path / "kept", 5)
        assert find(config(tmp_path, tmp_path / "kept"), "mine").folder == str(tmp_path / "kept")
        assert find(config(tmp_path, tmp_path / "kept" / "step-5"), "mine").folder is None


class TestRunFolder:
    def opened(self, given):
        return open_run(given, "mine", find(given, "mine"))

    def test_a_run_that_begins_has_one_and_a_place_for_checkpoints(self, tmp_path):
        run = self.opened(config(tmp_path, resume=None))
        assert (run.path / "checkpoints").is_dir()

    def test_a_run_that_keeps_none_has_no_place_for_them(self, tmp_path):
        assert not (self.opened(config(tmp_path, resume=None, every=0)).path / "checkpoints").exists()

    def test_a_run_that_goes_on_forgets_how_it_ended(self, tmp_path):
        path = run_of(tmp_path, "mine-20310101-000000", 4)
        RunFolder(path).logs.mkdir()
        RunFolder(path).error(1).write_text("{}")
        run = self.opened(config(tmp_path))
        assert run.path == path
        assert not run.has_failed

    def test_a_checkpoint_that_is_named_begins_another(self, tmp_path):
        path = run_of(tmp_path, "mine-20310101-000000", 4, 5)
        run = self.opened(config(tmp_path, path / "checkpoints" / "step-4"))
        assert run.path.parent == tmp_path
        assert run.path != path

    def test_checkpoints_of_another_run_are_no_place_for_those_of_this_one(self, tmp_path):
        (tmp_path / "kept").mkdir()
        saved(tmp_path / "kept", 4)
        with pytest.raises(ConfigError, match=r"checkpoint\.folder: .* holds step-4"):
            self.opened(config(tmp_path / "runs", resume=None, folder=tmp_path / "kept"))
        assert not (tmp_path / "runs").exists(), "no run folder was begun"
