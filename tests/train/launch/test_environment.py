"""Which rank a process is, as torchrun's environment says."""

from __future__ import annotations

import pytest

from meshwright.train.launch.environment import Rank

ENVIRONMENT = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def test_it_is_read_from_the_environment(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert Rank.of_environment() == Rank(index=5, world=8, local_index=1, local_world=4)


@pytest.mark.parametrize("missing", ENVIRONMENT)
def test_without_a_launcher_there_is_none(monkeypatch, missing):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    with pytest.raises(KeyError, match=missing):
        Rank.of_environment()
