"""The backend of an audit: `Declared`, with a `Boundary` in place of every module's forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from meshwright.audit.boundary import Boundary
from meshwright.audit.call import Call
from meshwright.audit.meter import Meter
from meshwright.audit.whole import Calls, path_of
from meshwright.backends.declared import Declared
from meshwright.backends.storage import Storage
from meshwright.check.report import Report as TypeReport
from meshwright.check.report import Trusted
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import View
from meshwright.core.contract import Contract
from meshwright.errors import Problem


class Audited(Declared):
    """Installs a `Boundary` on every module.

    passed: the global shapes of what crosses each. unjudged: modules whose contract is wrong. tell: called with each
    problem. report: of the checker that is on. believed: what is taken on trust, `where` being the module. at, calls:
    the modules that run now, outermost first, and what they were given. judging: False while something is only tried,
    or a boundary is crossed.
    """

    def __init__(
        self,
        dims: ParallelismDims,
        view: View,
        storage: Storage,
        stated: View,
        sparse: View,
        *,
        passed: Calls,
        unjudged: set[str],
        tell: Callable[[Problem], None],
        meter: Meter,
    ) -> None:
        super().__init__(dims, view, storage, stated, sparse)
        self.passed, self.unjudged, self.tell, self.meter = passed, unjudged, tell, meter
        self.at: list[Boundary] = []
        self.calls: list[Call] = []
        self.judging = True
        self.report = TypeReport()
        self.believed: list[Trusted] = []

    def install(self, module: nn.Module, contract: Contract, path: str) -> None:
        module.forward = Boundary(self, module, contract, path)

    def watch(self, model: nn.Module) -> None:
        """Install a boundary also where nothing is declared."""
        for path, module in model.named_modules():
            if "forward" not in vars(module) and type(module).forward is not nn.Module.forward:
                module.forward = Boundary(self, module, Contract({}, {}, None), path_of(path, module))

    @contextmanager
    def believing(self, path: str, reasons: Mapping[str, str]) -> Iterator[None]:
        """What the checker takes on trust in the block is of the module `path`, if of none inside it.

        reasons: axis -> why what is claimed there is right.
        """
        around, self.report.claims = self.report.claims, []
        try:
            yield
        finally:
            found, self.report.claims = self.report.claims, around
        for each in found:
            why = next((why for axis, why in reasons.items() if each.what.startswith(f"V on axis {axis!r} is ")), "")
            self.believe(replace(each, where=path, reason=each.reason or why))

    def believe(self, trusted: Trusted) -> None:
        """Note what is taken on trust, once."""
        if trusted not in self.believed:
            self.believed.append(trusted)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Errors of the block are its own."""
        before, self.judging = self.judging, False
        try:
            yield
        finally:
            self.judging = before
