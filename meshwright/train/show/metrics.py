"""Where the records of a run go: metrics.jsonl, tensorboard, and the curve at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from meshwright.errors import ConfigError, Problem, install
from meshwright.train.show.plot import loss_svg
from meshwright.train.show.record import StepRecord
from meshwright.train.show.run_folder import RunFolder

if TYPE_CHECKING:
    from meshwright.train.config import TrainConfig


TAGS: Final = MappingProxyType(
    {
        "loss": "loss/training",
        "validation_loss": "loss/validation",
        "grad_norm": "grad_norm",
        "rate": "rate",
        "tokens_per_second": "tokens_per_second",
        "memory_gib": "memory_gib",
    }
)
"""Field of a StepRecord -> its name in tensorboard; the losses share a group."""


class Sink(Protocol):
    """One place that takes the records of a run."""

    def write(self, record: StepRecord) -> None:
        """Take one more record."""

    def close(self) -> None:
        """There will be no more."""


class Lines:
    """metrics.jsonl, one line a record; loss.svg once there are no more.

    earlier: what is written already, of a run that goes on
    """

    def __init__(self, folder: RunFolder, earlier: Sequence[StepRecord] = ()) -> None:
        self._folder = folder
        self._records = list(earlier)

    def write(self, record: StepRecord) -> None:
        """Take one more record."""
        self._records.append(record)
        self._folder.append(asdict(record))

    def close(self) -> None:
        """Draw the curve."""
        self._folder.curve.write_text(loss_svg(self._records), encoding="utf-8")


class Tensorboard:
    """Scalars for tensorboard, named by TAGS.

    writer: has `add_scalar(tag, value, step)` and `close()`
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, record: StepRecord) -> None:
        """Take one more record."""
        for field, tag in TAGS.items():
            value = getattr(record, field)
            if value is not None:
                self._writer.add_scalar(tag, value, record.step)

    def close(self) -> None:
        """Flush what is not written yet."""
        self._writer.close()


class Metrics:
    """Hands every record to every sink; a context, at whose end the sinks are closed, also after a failure."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, record: StepRecord) -> None:
        """Hand on one more record."""
        for sink in self._sinks:
            sink.write(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._sinks:
            sink.close()


def open_metrics(folder: RunFolder, *, tensorboard: bool, earlier: Sequence[StepRecord] = ()) -> Metrics:
    """The metrics of a run that is written to `folder`; earlier: its records from before it was resumed."""
    sinks: list[Sink] = [Lines(folder, earlier)]
    if tensorboard:
        from torch.utils.tensorboard import SummaryWriter

        sinks.append(Tensorboard(SummaryWriter(str(folder.path))))
    return Metrics(sinks)


def check_extras(config: TrainConfig) -> None:
    """Errors: `ConfigError` if the config wants what is not installed."""
    if config.output.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError(
            Problem(
                where="output.tensorboard",
                what="tensorboard is not installed",
                fix=f"{install('tensorboard')}; or --output.no-tensorboard",
            )
        )
