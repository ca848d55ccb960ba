"""`typecheck` and the blocks inside it: who is judged, and how closely."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeVar, cast, overload

from meshwright.check import source
from meshwright.check.intercept import intercepted
from meshwright.check.mode import TypeCheck
from meshwright.check.report import Report, Trusted
from meshwright.errors import SpmdTypeError
from meshwright.types.argument import FLAG, Kind, demand, optional

F = TypeVar("F", bound=Callable[..., Any])


class _Checking(threading.local):
    check: TypeCheck | None = None


_checking: Final = _Checking()


def active() -> TypeCheck | None:
    """The checker of this thread, if it is on."""
    check = _checking.check
    return check if check is not None and not check.paused else None


def is_present() -> bool:
    """Whether this thread has a checker, be it paused."""
    return _checking.check is not None


def is_type_checking() -> bool:
    """Whether calls of this thread are judged now."""
    return active() is not None


@contextmanager
def typecheck(*, local: bool | None = None, collect: bool = False) -> Iterator[Report]:
    """Judge every call on tensors until the end of the block, whose report this gives.

    local: follow only R, I, V and P, and which dim is cut as long as every op keeps it (default: always). collect: go
    on after a problem, and raise all of them together at the end of the block. Inside another such block only `local`
    counts, until the end of the inner one.

    Errors: `SpmdTypeError` naming the operands, the axis, the reason and what to write instead; at the call, or at
    the end of the block if `collect`.
    """
    demand("typecheck", "local", local, optional(FLAG))
    demand("typecheck", "collect", collect, FLAG)
    outer = _checking.check
    if outer is not None:
        with _locally(outer, outer.local if local is None else local):
            yield outer.report
        return
    report = Report()
    try:
        with checking(report, local=bool(local), collect=collect):
            yield report
    except SpmdTypeError as error:
        if not collect:
            raise
        for problem in error.problems:
            report.add(problem)
    except Exception as error:
        if report.problems:  # it comes of what is wrong
            raise SpmdTypeError(report.problems) from error
        raise
    report.demand_none()


@contextmanager
def checking(report: Report, **how: Any) -> Iterator[TypeCheck]:
    """Judge every call until the end of the block, into `report`; `how`: as of `TypeCheck`."""
    check = TypeCheck(report, **how)
    with intercepted():
        _checking.check = check
        try:
            with check:
                yield check
        except SpmdTypeError as error:
            raise _placed(error) from error.__cause__
        finally:
            _checking.check = None


def _placed(error: SpmdTypeError) -> SpmdTypeError:
    """The error with the user's line where a problem has none: calls of the wrong types fail before anybody judges."""
    line = source.line_of(error.__traceback__)
    if not line or all(_LINE.search(problem.where) for problem in error.problems):
        return error
    placed = [
        problem
        if _LINE.search(problem.where)
        else replace(problem, where=", ".join(filter(None, (line, problem.where))))
        for problem in error.problems
    ]
    return SpmdTypeError(placed).with_traceback(error.__traceback__)


_LINE: Final = re.compile(r"\.py:\d+|<\w+>:\d+")


@contextmanager
def local() -> Iterator[None]:
    """Follow only R, I, V and P until the end of the block: for what no sharding of dims describes.

    A dim's cut is remembered as long as every op keeps it, and is V from then on; a contraction over a cut that is
    still known is P. Outside `typecheck` this does nothing.
    """
    check = _checking.check
    if check is None:
        yield
        return
    with _locally(check, True):
        yield


@contextmanager
def _locally(check: TypeCheck, local: bool) -> Iterator[None]:
    before = check.local
    check.local = local
    try:
        yield
    finally:
        check.local = before


@overload
def no_typecheck(reason: F) -> F: ...
@overload
def no_typecheck(reason: str = "") -> Unjudged: ...
def no_typecheck(reason: str | Callable[..., Any] = "") -> Any:
    """Judge nothing until the end of the block, or in the function that it decorates.

    `with no_typecheck("why this is right"):` What is computed in it has no type until one is stated. The blocks, with
    their reasons, are listed in the report.
    """
    if callable(reason):
        return Unjudged()(reason)
    demand("no_typecheck", "reason", reason, _REASON)
    return Unjudged(reason)


_REASON: Final = Kind(lambda value: isinstance(value, str), "a reason", '"why this is right"')


class Unjudged:
    """What `no_typecheck` gives: a context, and a decorator."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        self._paused: list[TypeCheck | None] = []

    def __enter__(self) -> None:
        check = active()
        self._paused.append(check)
        if check is not None:
            check.report.trust(check.report.unchecked, Trusted(source.line(), "not judged", self.reason))
            check.paused = True

    def __exit__(self, *_: object) -> None:
        check = self._paused.pop()
        if check is not None:
            check.paused = False

    def __call__(self, function: F) -> F:
        """The function, in which nothing is judged."""

        @wraps(function)
        def unjudged(*args: Any, **kwargs: Any) -> Any:
            with Unjudged(self.reason):
                return function(*args, **kwargs)

        return cast(F, unjudged)
