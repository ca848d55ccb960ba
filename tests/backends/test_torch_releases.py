"""A torch that nobody has tested is told of once, and a tested one not at all."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings

import pytest
import torch
from torch.distributed.tensor import _utils as tensor_utils

from meshwright.audit.check import check
from meshwright.backends import dtensors, torch_releases
from meshwright.backends.torch_releases import TESTED, UntestedTorchWarning, is_tested
from tests.parity.harness import small


@pytest.mark.parametrize("release", [*TESTED, "2.13.1+cpu", "2.14.1+cu130", f"{TESTED[0]}a0+git1234567"])
def test_a_series_is_tested_with_its_patches(release):
    assert is_tested(release)


@pytest.mark.parametrize("release", ["2.12.1", "2.15.0", "2.140.0", "3.13.0", "2.1.3"])
def test_any_other_is_not(release):
    assert not is_tested(release)


def test_the_installed_one_is_tested():
    assert is_tested(torch.__version__)


UNTESTED = """
import sys
import torch
torch.__version__ = "9.1.0"
import meshwright.spmd
from meshwright.audit.check import check
from meshwright.recipes import find
for _ in range(2):
    check(find("llama3_debug"), "llama3_debug", lambda dims: (0,))
"""


def test_an_untested_one_is_told_of_once_when_a_recipe_is_judged():
    """Which is what `meshwright check` and `meshwright train` begin with, in the one process that a person started."""
    run = subprocess.run([sys.executable, "-c", UNTESTED], capture_output=True, text=True, check=True)
    assert run.stderr.count("UntestedTorchWarning") == 1
    assert all(release in run.stderr for release in ("9.1.0", *TESTED))


def test_nothing_is_said_of_a_tested_one():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(small(), "mine", lambda dims: (0,))


def test_what_is_said_names_the_tested_ones(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.1.0")
    with pytest.warns(UntestedTorchWarning, match=", ".join(TESTED)):
        torch_releases.warn_of_untested()


def test_ExplicitRedistributionContext_of__utils_refuses_a_redistribution_that_nobody_asked_for():
    """The one private name of torch.distributed.tensor that dtensors.py leans on; tests/cases/test_case_38 shows that
    it does so within the scope of a backend."""
    assert dtensors.ExplicitRedistributionContext is tensor_utils.ExplicitRedistributionContext
    assert "strict" in inspect.signature(dtensors.ExplicitRedistributionContext.__init__).parameters
