"""Where tensors live, and the process group that goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from meshwright.errors import ConfigError, Problem

TIMEOUT = timedelta(minutes=10)
"""How long a collective waits for its peers."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A kind of device and the process group backend that moves its tensors."""

    type: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]


CPU = Device(type="cpu", backend="gloo")
CUDA = Device(type="cuda", backend="nccl")


def choose(wanted: Literal["auto", "cpu", "cuda"], processes: int) -> Device:
    """The device of each of `processes` on this machine; "auto": cuda where there is one for each, else cpu.

    Errors: `ConfigError` if cuda is wanted and there are fewer devices than processes.
    """
    present = torch.cuda.device_count()
    if wanted == "cuda" and present < processes:
        raise ConfigError(
            Problem(
                where="launch.device",
                what=f"cuda is asked for {processes} process{'es' * (processes > 1)}, this machine has {present} of it",
                why="every process has a device of its own",
                fix=f"--launch.device cpu{f', or {present} processes' if present else ''}",
            )
        )
    return CUDA if wanted != "cpu" and present >= processes else CPU


def start(device: Device, local_rank: int, *, threads: int = 1, timeout: timedelta = TIMEOUT) -> torch.device:
    """Join the process group that torchrun's environment describes; the device of this rank.

    threads: of this process, for arithmetic on a cpu
    """
    torch.set_num_threads(threads)
    if device.type == "cpu":
        dist.init_process_group(device.backend, timeout=timeout)
        return torch.device("cpu")
    place = torch.device("cuda", local_rank)
    torch.cuda.set_device(place)
    dist.init_process_group(device.backend, device_id=place, timeout=timeout)
    return place


def stop() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
