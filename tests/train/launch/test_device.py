"""The device follows from what is wanted and from what there is."""

from __future__ import annotations

import pytest
import torch

from meshwright.errors import ConfigError
from meshwright.train.launch.device import CPU, CUDA, Device, choose


@pytest.mark.parametrize(
    ("wanted", "present", "processes", "device"),
    [
        ("auto", 0, 1, CPU),
        ("auto", 2, 2, CUDA),
        ("auto", 2, 4, CPU),
        ("cpu", 8, 2, CPU),
        ("cuda", 2, 2, CUDA),
    ],
)
def test_cuda_is_for_processes_that_have_one_each(
    wanted: str, present: int, processes: int, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: present)
    assert choose(wanted, processes) == device  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("present", "processes", "said"),
    [
        (0, 1, "cuda is asked for 1 process, this machine has 0 of it"),
        (2, 4, "cuda is asked for 4 processes, this machine has 2 of it"),
    ],
)
def test_cuda_that_is_not_there_is_refused(
    present: int, processes: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: present)
    with pytest.raises(ConfigError) as refused:
        choose("cuda", processes)
    (problem,) = refused.value.problems
    assert (problem.where, problem.what) == ("launch.device", said)
    assert problem.fix.startswith("--launch.device cpu")
    assert ("or 2 processes" in problem.fix) is (present == 2)
