"""`meshwright parity`: what it finds, what it says, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.errors import ConfigError
from meshwright.parity.command import run
from meshwright.train import step
from tests.parity.planted import planted
from tests.train.launch.test_parent import hears_ctrl_c


@pytest.fixture(autouse=True)
def _unpatched(monkeypatch):
    """What a planted recipe patches is put back."""
    monkeypatch.setattr(step, "valid_tokens", step.valid_tokens)


def parity(*arguments: str) -> int:
    return main(["parity", *arguments])


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = parity(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_a_right_recipe_on_processes_is_exit_code_0(capsys):
    code = parity("llama3_debug", "--ranks", "2", "--backends", "spmd_types")
    shown = capsys.readouterr()
    assert code == 0, shown.out
    assert shown.out.startswith("llama3_debug: right, 10 cells equal one device within 1e-05")
    assert shown.out.count("ok ") == 10
    assert "pp=2,schedule=zbv" in shown.out
    assert shown.err == ""


def test_simulated_ranks_say_so(capsys):
    assert parity("llama3_debug", "--ranks", "2", "--fast") == 0
    shown = capsys.readouterr().out
    assert "simulated ranks: no processes, no FSDP, no pipeline" in shown
    assert shown.count("ok ") == 5
    assert "pp=" not in shown


PLANTED = [
    ("norm_typed_invariant", "tp=2", "grads", "attention_norm.weight", "the sum over tp is missing", None),
    ("norm_typed_replicate", "tp=2,sequence_parallel=no", "grads", "attention_norm.weight", "x tp", 2.0),
    (
        "reduction_dropped_backward",
        "tp=2,sequence_parallel=no",
        "grads",
        "feed_forward_norm.weight",
        "sum over tp",
        None,
    ),
    ("own_divisor", "dp_shard=2", "grads", "embedding.weight", "each data rank counts otherwise", None),
    ("own_divisor", "cp=2", "grads", "embedding.weight", "each data rank counts otherwise", None),
    ("reduction_dropped_forward", "tp=2", "grads", "embedding.weight", "`meshwright check` names the op", None),
    ("gradient_averaged", "tp=2", "grads", "norm.weight", "/ tp", 0.5),
]


@pytest.mark.parametrize(("fault", "layout", "kind", "name", "law", "ratio"), PLANTED)
def test_a_planted_fault_is_named_with_its_law(fault, layout, kind, name, law, ratio, tmp_path, capsys):
    code, shown = found(capsys, planted(tmp_path, fault), "--fast", "--layout", layout)
    assert code == 1
    assert shown["verdict"] == "wrong"
    (cell,) = shown["cells"]
    off = cell["off"][-1]
    assert (cell["verdict"], off["kind"]) == ("off", kind)
    assert off["name"].endswith(name)
    assert law in cell["law"]
    assert cell["ratio"] == (None if ratio is None else pytest.approx(ratio, rel=1e-4))


def test_the_copied_recipe_without_a_fault_is_right(tmp_path, capsys):
    code, shown = found(capsys, planted(tmp_path, "none"), "--fast", "--ranks", "2")
    assert (code, shown["verdict"]) == (0, "right")


def test_a_declaration_that_is_no_layout_is_refused_with_its_message(tmp_path, capsys):
    assert parity(planted(tmp_path, "no_layout"), "--fast", "--layout", "tp=2") == 2  # already on one device
    assert "no argument" in capsys.readouterr().err


def test_backends_find_the_same_fault_on_processes(tmp_path, capsys):
    """Plain tensors train on wrong gradients; DTensors refuse what is not as declared. The processes go on."""
    recipe = planted(tmp_path, "norm_typed_invariant")
    code, shown = found(capsys, recipe, "--layout", "tp=2", "--layout", "dp_shard=2")
    assert code == 1
    verdicts = {(cell["layout"], cell["backend"]): cell["verdict"] for cell in shown["cells"]}
    assert verdicts == {
        ("tp=2", "spmd_types"): "off",
        ("tp=2", "full_dtensor"): "refused",
        ("tp=2", "partial_dtensor"): "refused",
        ("dp_shard=2", "spmd_types"): "ok",
        ("dp_shard=2", "full_dtensor"): "ok",
        ("dp_shard=2", "partial_dtensor"): "ok",
    }


def test_a_dropped_reduction_names_the_module(tmp_path, capsys):
    """Where plain tensors only compute something else, DTensor says which module is not as declared."""
    recipe = planted(tmp_path, "reduction_dropped_forward")
    code, shown = found(capsys, recipe, "--layout", "tp=2", "--backends", "full_dtensor")
    assert code == 1
    assert shown["cells"][0]["verdict"] == "refused"
    assert shown["cells"][0]["problems"][0]["where"].startswith("blocks.0.attention.wo")


def test_a_layout_that_the_model_cannot_have_says_why_and_is_not_wrong(capsys):
    code, shown = found(capsys, "llama3_debug", "--fast", "--layout", "tp=3", "--layout", "tp=2")
    assert code == 0
    verdicts = {cell["layout"]: cell["verdict"] for cell in shown["cells"]}
    assert verdicts == {"tp=3": "none", "tp=2": "ok"}
    assert "do not split over tp 3" in shown["cells"][1]["problems"][0]["what"]


@pytest.mark.parametrize("layout", ["tp=2", "cp=2", "cp=3"])
def test_sequences_are_such_that_the_chunks_of_the_loss_divide_them(layout, capsys):
    code, shown = found(capsys, "llama3_debug", "--fast", "--layout", layout, "--compute.loss-chunks", "32")
    assert code == 0
    assert shown["cells"][0]["verdict"] == "ok"


def test_a_recipe_that_one_device_cannot_run_is_an_error_of_the_recipe(capsys):
    assert parity("llama3_debug", "--fast", "--layout", "tp=2", "--compute.loss-chunks", "3") == 2
    assert (
        "compute.loss_chunks: 128 tokens of a sequence on a rank do not divide into 3 chunks" in capsys.readouterr().err
    )


def test_a_parameter_that_a_layout_does_not_train_is_off(tmp_path, capsys):
    code, shown = found(capsys, planted(tmp_path, "frozen"), "--fast", "--layout", "tp=2")
    assert code == 1
    (cell,) = shown["cells"]
    assert cell["verdict"] == "off"
    assert cell["law"] == "no gradient: not trained"
    assert [(off["kind"], off["name"]) for off in cell["off"]] == [("grads", "norm.weight")]


def test_nothing_to_compare_is_not_right(capsys):
    assert parity("llama3_debug", "--fast", "--layout", "tp=3") == 1
    assert "nothing compared" in capsys.readouterr().out


def test_flags_of_the_recipe_are_heard(capsys):
    code, shown = found(
        capsys,
        "llama3_debug",
        "--fast",
        "--layout",
        "tp=2",
        "--model.heads",
        "6",
        "--model.kv-heads",
        "3",
        "--model.dim",
        "48",
    )
    assert code == 1
    assert shown["cells"][0]["verdict"] == "none"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no recipe"),
        (["llama3_debgu"], "did you mean 'llama3_debug'"),
        (["llama3_debug", "--ranks", "9"], "--ranks: '9'"),
        (["llama3_debug", "--ranks"], "--ranks: no value"),
        (["llama3_debug", "--layout", "tp=16"], "--layout: 16 ranks"),
        (["llama3_debug", "--layout", "tp=1"], "--layout: one rank"),
        (["llama3_debug", "--layout", "ttp=2"], "no field 'ttp'"),
        (["llama3_debug", "--backends", "spmd_type"], "did you mean 'spmd_types'"),
        (["llama3_debug", "--fast", "--layout", "pp=2"], "a pipeline, under --fast"),
        (["llama3_debug", "--fast", "--backends", "full_dtensor"], "--fast: it has the backend spmd_types alone"),
        (["llama3_debug", "--fast", "--layout", "tp=2", "--model.heds", "3"], "no such flag"),
    ],
)
def test_a_bad_command_line_is_exit_code_2(arguments, told, capsys):
    assert parity(*arguments) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out == ""


def test_a_rank_that_dies_is_one_clear_error(tmp_path, capsys):
    assert parity(planted(tmp_path, "dies"), "--layout", "tp=2", "--backends", "spmd_types") == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: rank 1: its process was ended by SIGKILL\n")
    assert shown.out == ""
    assert children_of(os.getpid()) == []


@pytest.mark.slow
def test_a_rank_that_fails_is_a_cell(tmp_path, capsys):
    """The other waits for it in vain, and is ended; the next cell has processes of its own."""
    recipe = planted(tmp_path, "raises")
    code, shown = found(capsys, recipe, "--layout", "tp=2", "--backends", "spmd_types,full_dtensor")
    assert code == 1
    assert [cell["verdict"] for cell in shown["cells"]] == ["refused", "refused"]
    assert "division by zero" in shown["cells"][1]["problems"][0]["what"]


def test_ctrl_c_ends_all_processes(tmp_path):
    recipe = planted(tmp_path, "hangs")
    command = [sys.executable, "-m", "meshwright", "parity", recipe, "--layout", "tp=2"]
    with subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=hears_ctrl_c,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while len(pids := [int(file.stem) for file in tmp_path.glob("*.pid")]) < 2:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "stopped\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def children_of(pid: int) -> list[int]:
    """Ranks that are still there; not the one that Python keeps to clean up after processes."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "spawn_main" in line]


@pytest.mark.parametrize(
    "flag", ["--parallel.tp=2", "--training.length", "--launch.device", "--compute.compile", "--compute.precision"]
)
def test_a_flag_that_would_have_no_say_is_refused(flag):
    with pytest.raises(ConfigError) as error:
        run(["llama3_debug", "--fast", "--layout", "tp=2", flag, "2"])
    (problem,) = error.value.problems
    assert problem.where == flag.partition("=")[0]
