"""`Configurable`: an object is described by its `Config` first and built from it later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


class Configurable:
    """A class with a nested dataclass `Config`, whose `build()` makes an instance.

    A subclass that adds settings declares `Config` anew, derived from its parent's; one that adds none inherits it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config:
        """Settings of the enclosing class."""

        owner: ClassVar[type[Any]]

        def build(self) -> Any:
            """An instance of the class that this config belongs to."""
            return self.owner(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "Config" not in cls.__dict__:
            names = {
                "__slots__": (),
                "__module__": cls.__module__,
                "__qualname__": f"{cls.__qualname__}.Config",
                "__doc__": f"{cls.__name__} adds no settings.",
            }
            cls.Config = type("Config", (cls.Config,), names)  # type: ignore[assignment, misc]
        cls.Config.owner = cls
