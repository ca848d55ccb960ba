"""What a rank does in the tests of launching: `python rank_program.py BEHAVIOUR FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from meshwright.errors import Problem, RunError

RANK, FOLDER = int(os.environ["RANK"]), Path(sys.argv[2])


def meet() -> None:
    """Wait until every rank is here: what follows finds all of them at work."""
    (FOLDER / f"here{RANK}").write_text(str(os.getpid()))
    while len(list(FOLDER.glob("here*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)


def sleep_through(*signals: signal.Signals) -> None:
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    meet()
    time.sleep(600)


def add_ranks() -> None:
    import torch
    import torch.distributed as dist

    from meshwright.train.launch import device

    place = device.start(device.choose("cpu", 2), RANK, threads=1)
    total = torch.tensor(float(RANK + 1), device=place)
    dist.all_reduce(total)
    device.stop()
    print(f"rank {RANK}: sum {total.item()}, {os.environ['OMP_NUM_THREADS']} threads")
    print(f"rank {RANK}: a warning", file=sys.stderr)


def abort_at_exit() -> None:
    import atexit

    atexit.register(os.abort)
    print(f"rank {RANK}: done")


def lose_a_peer() -> None:
    """Rank 1 is killed; rank 0 finds out amid a collective."""
    import torch
    import torch.distributed as dist

    from meshwright.train.launch import device

    device.start(device.choose("cpu", 2), RANK)
    meet()
    if RANK == 1:
        print("rank 1: last words")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def refuse() -> None:
    meet()
    raise RunError(Problem(where="step 3", what="the loss is nan", fix="a lower rate"))


def break_down() -> None:
    meet()
    raise ValueError("no such number")


def refuse_in_rank_1() -> None:
    refuse() if RANK == 1 else sleep_through(signal.SIGTERM)


def break_down_in_rank_0() -> None:
    break_down() if RANK == 0 else sleep_through()


def quit_in_rank_1() -> None:
    meet()
    if RANK == 1:
        sys.exit(7)
    time.sleep(600)


BEHAVIOURS: dict[str, Callable[[], None]] = {
    behaviour.__name__: behaviour
    for behaviour in (
        add_ranks,
        abort_at_exit,
        lose_a_peer,
        refuse,
        refuse_in_rank_1,
        break_down_in_rank_0,
        quit_in_rank_1,
        sleep_through,
    )
}

if __name__ == "__main__":
    from meshwright.train.launch.rank import run_rank

    run_rank(BEHAVIOURS[sys.argv[1]])
