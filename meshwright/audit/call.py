"""The arguments of one call of a module, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from meshwright.core.contract import arguments


class Call:
    """What `forward` is given."""

    def __init__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.module, self.args, self.kwargs = module, list(args), dict(kwargs)
        self.places = arguments(module)

    def __getitem__(self, name: str) -> Any:
        """The argument `name`; None where it is not given."""
        place = self.places.get(name)
        return self.args[place] if place is not None and place < len(self.args) else self.kwargs.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        place = self.places.get(name)
        if place is not None and place < len(self.args):
            self.args[place] = value
        else:
            self.kwargs[name] = value

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors among the arguments, by name."""
        yield from ((name, self[name]) for name in self.places if isinstance(self[name], Tensor))

    def run(self) -> Any:
        """What the class's `forward` makes of them."""
        return type(self.module).forward(self.module, *self.args, **self.kwargs)
