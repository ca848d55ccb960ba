"""Every record reaches every place, also of a run that fails."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from meshwright import recipes
from meshwright.errors import ConfigError, Problem, RunError
from meshwright.train.config import OutputConfig
from meshwright.train.show import metrics
from meshwright.train.show.metrics import Lines, Metrics, Tensorboard, check_extras, open_metrics
from meshwright.train.show.record import Summary
from meshwright.train.show.run_folder import RunFolder

from .records import record


class Writer:
    """What tensorboard's writer does, as far as it is used."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.is_closed = False

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def close(self) -> None:
        self.is_closed = True


def test_records_become_lines_and_a_curve(tmp_path: Path) -> None:
    folder, records = RunFolder(tmp_path), [record(1, validation_loss=2.5), record(2)]
    with open_metrics(folder, tensorboard=False) as opened:
        for one in records:
            opened.write(one)
    assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == [asdict(one) for one in records]
    assert folder.curve.read_text().startswith("<svg")


def test_a_run_that_fails_keeps_what_it_has(tmp_path: Path) -> None:
    folder, writer = RunFolder(tmp_path), Writer()
    with suppress(RunError), Metrics([Lines(folder), Tensorboard(writer)]) as opened:
        opened.write(record(1))
        raise RunError(Problem(where="step 2", what="the loss is nan"))
    assert len(folder.metrics.read_text().splitlines()) == 1
    assert folder.curve.exists()
    assert writer.is_closed


def test_tensorboard_has_every_scalar_under_its_step() -> None:
    writer = Writer()
    sink = Tensorboard(writer)
    sink.write(record(1, loss=3.0, validation_loss=2.5))
    sink.write(record(2, loss=2.0))
    assert ("loss/training", 3.0, 1) in writer.scalars
    assert [scalar for scalar in writer.scalars if scalar[0] == "loss/validation"] == [("loss/validation", 2.5, 1)]
    assert {tag for tag, _, step in writer.scalars if step == 2} == {
        "loss/training",
        "grad_norm",
        "rate",
        "tokens_per_second",
        "memory_gib",
    }


@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize("is_wanted", [True, False])
def test_tensorboard_is_demanded_only_where_it_is_wanted(
    is_wanted: bool, is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "find_spec", lambda name: object() if is_installed else None)
    config = replace(recipes.find("llama3_debug"), output=OutputConfig(tensorboard=is_wanted))
    if is_wanted and not is_installed:
        with pytest.raises(ConfigError, match=r"output\.tensorboard: tensorboard is not installed"):
            check_extras(config)
    else:
        check_extras(config)


def test_a_summary_goes_from_the_first_record_to_the_last() -> None:
    records = [
        record(1, loss=9.0, validation_loss=8.5),
        record(2, loss=5.0),
        record(3, loss=4.0, validation_loss=4.5),
        record(4, loss=3.0),
    ]
    assert Summary.of(records) == Summary(loss=(9.0, 3.0), validation_loss=(8.5, 4.5), tokens=4000, seconds=8.0)
    assert Summary.of(records[1:2]).validation_loss is None


def test_the_curve_of_a_run_that_goes_on_begins_with_its_earlier_records(tmp_path: Path) -> None:
    whole, resumed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "resumed")
    records = [record(1, loss=3.0), record(2, loss=2.0), record(3, loss=1.0)]
    for folder, earlier in ((whole, 0), (resumed, 2)):
        folder.path.mkdir()
        with open_metrics(folder, tensorboard=False, earlier=records[:earlier]) as opened:
            for one in records[earlier:]:
                opened.write(one)
    assert resumed.curve.read_text() == whole.curve.read_text()
    assert len(resumed.metrics.read_text().splitlines()) == 1, "what was written before is not written again"
