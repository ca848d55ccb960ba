"""The house stands as ARCHITECTURE.md says: imports point down, files are small, names are public on purpose."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

import meshwright

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "meshwright"
LONGEST = 500

BELOW: Mapping[str, tuple[str, ...]] = {
    "codes": (),
    "errors": ("codes",),
    "terminal": (),
    "types": ("errors", "codes"),
    "comm": ("types", "errors", "codes"),
    "check": ("comm", "types", "errors", "codes", "version"),
    "spmd": ("check", "comm", "types", "errors"),
    "core": ("comm", "types", "errors"),
    "backends": ("core", "comm", "types", "errors"),
    "models": ("core", "comm", "types", "errors"),
    "flags": ("errors",),
    "train/data": ("errors",),
    "train": ("train/data", "backends", "models", "core", "comm", "types", "errors", "terminal", "recipes", "version"),
    "audit": ("check", "train", "backends", "models", "core", "comm", "types", "errors", "codes", "terminal"),
    "recipes": ("train", "models", "errors"),
    "parity": ("recipes", "flags", "train", "train/data", "comm", "types", "errors", "terminal"),
    "cli": ("recipes", "flags", "audit", "parity", "train", "terminal", "errors", "version"),
    "__main__": ("cli",),
}
"""Room -> the rooms that it may import from; its own goes without saying."""

SPMD = """
    CP DP DP_REPLICATE DP_SHARD EFSDP EP I Infer MeshAxis P PP PartitionSpec Plan R Report S Shard SpmdLayout
    SpmdType SpmdTypeError Step TP TP_COPY TP_KV Transition V View all_gather all_reduce all_to_all
    assert_local_type assert_type assert_type_like axis_index axis_size check convert current_mesh
    get_axis_local_type get_local_type get_partition_spec has_local_type invariant_to_replicate is_type_checking
    layout_of local local_map merge_types mesh mutate_type no_typecheck plan redistribute reduce_scatter
    register_autograd_function reinterpret reinterpret_mesh reinterpret_no_grad set_current_mesh shard show size
    step typecheck unshard
"""


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


def room_of(module: str) -> str:
    """meshwright.train.data.store -> train/data"""
    parts = module.split(".")[1:]
    if not parts:
        return "version"
    return "train/data" if parts[:2] == ["train", "data"] else parts[0]


def module_of(file: Path, root: Path) -> str:
    return ".".join((root.name, *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")


def imports(file: Path) -> Iterator[str]:
    """Every module of meshwright that the file imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        yield from imported_by(node)


def imported_by(node: ast.AST) -> Iterator[str]:
    """The modules of meshwright that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "meshwright":
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        # `from meshwright import flags` names a room, `from meshwright.types.kinds import R` a value of one
        yield from names if node.module == "meshwright" else [node.module]
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "meshwright")


def upward(root: Path) -> list[str]:
    found = []
    for file in files(root):
        room = room_of(module_of(file, root))
        for module in imports(file):
            target = "version" if module == "meshwright.__version__" else room_of(module)
            if target != room and room != "version" and target not in BELOW[room]:
                found.append(f"{file.relative_to(root)} imports {module}")
    return found


def eager(root: Path) -> list[str]:
    """Imports of the checker, or of the audit, as a module is loaded: a program that runs unchecked never loads it."""
    return [
        f"{file.relative_to(root)} imports {module}"
        for file in files(root)
        if room_of(module_of(file, root)) not in ("check", "audit")
        for node in ast.parse(file.read_text()).body
        for module in imported_by(node)
        if room_of(module) in ("check", "audit")
    ]


def beside_the_recipe(root: Path) -> list[str]:
    """A recipe says numbers: it imports models and the train config."""
    allowed = ("meshwright.models", "meshwright.train.config", "meshwright.errors")
    return [
        f"{file.relative_to(root)} imports {module}"
        for file in files(root / "recipes")
        for module in imports(file)
        if not module.startswith(allowed)
    ]


def too_long(root: Path) -> list[str]:
    counts = {file: len(file.read_text().splitlines()) for file in files(root)}
    return [f"{file.relative_to(root)}: {lines} lines" for file, lines in counts.items() if lines > LONGEST]


FORBIDDEN = {
    r"isinstance\([^)\n]*DTensor": ("backends/",),
    r"^\s*(import|from)\s+(spmd_types|torchtitan)\b": (),
    r"(?<![\w.])/(work|tmp|root|home|opt|usr)/": (),
    r"\bTODO\b|\bFIXME\b|NotImplementedError": (),
    r"\bRaises [A-Z]": (),
    r"_fsdp_param|_get_fsdp_state": ("backends/fsdp.py",),
}
"""What stands nowhere in the package but in these places."""


def forbidden(root: Path) -> list[str]:
    return [
        f"{file.relative_to(root)}: {match[0]}"
        for pattern, allowed in FORBIDDEN.items()
        for file in files(root)
        if not str(file.relative_to(root)).startswith(allowed or ("-",))
        for match in re.finditer(pattern, file.read_text(), re.MULTILINE)
    ]


def undocumented(root: Path) -> list[str]:
    """Public modules, classes and functions at module level without a docstring; recipes' `config` needs none."""
    found = []
    for file in files(root):
        tree = ast.parse(file.read_text())
        if file.read_text().strip() and ast.get_docstring(tree) is None:
            found.append(str(file.relative_to(root)))
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                is_forward = isinstance(node, ast.FunctionDef) and _is_rule(node)
                if ast.get_docstring(node) is None and not is_forward:
                    found.append(f"{file.relative_to(root)}: {node.name}")
    return found


def _is_rule(node: ast.FunctionDef) -> bool:
    """Registered in a table under the name of the op that it judges: the table says what it is."""
    return bool(node.decorator_list)


def unexplained(root: Path) -> list[str]:
    """Rooms without a README."""
    folders = {file.parent for file in files(root)} - {root}
    return [str(folder.relative_to(root)) for folder in sorted(folders) if not (folder / "README.md").is_file()]


def unnamed(root: Path) -> list[str]:
    """Modules and rooms within a room that its README does not name in backticks. Recipes are named by the command."""
    found = []
    for folder in sorted({file.parent for file in files(root)} - {root, root / "recipes"}):
        readme = folder / "README.md"
        told = readme.read_text() if readme.is_file() else ""
        names = [file.stem for file in sorted(folder.glob("*.py")) if not file.stem.startswith("__")]
        names += [f"{file.parent.name}/" for file in sorted(folder.glob("*/__init__.py"))]
        found += [f"{folder.relative_to(root)}: {name}" for name in names if f"`{name}`" not in told]
    return found


def undocumented_methods(module: ModuleType) -> list[str]:
    """Public methods and nested classes of public classes whose docstring is neither written nor inherited."""
    found = []
    for name, kind in vars(module).items():
        if name.startswith("_") or not inspect.isclass(kind) or kind.__module__ != module.__name__:
            continue
        for own, value in vars(kind).items():
            code = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            described = inspect.isfunction(code) or inspect.isclass(code)
            if described and not own.startswith("_") and not inspect.getdoc(getattr(kind, own)):
                found.append(f"{module.__name__}.{name}.{own}")
    return found


RULES = {
    "imports": upward,
    "checker": eager,
    "recipes": beside_the_recipe,
    "length": too_long,
    "forbidden": forbidden,
    "docstrings": undocumented,
    "rooms": unexplained,
    "readmes": unnamed,
}

MODULE = '"""Bad."""\n'
BROKEN = [
    ("imports", "models/bad.py", MODULE + "from meshwright.backends.erased import Erased\n"),
    ("imports", "models/bad.py", MODULE + "def f():\n    import meshwright.train.step\n"),
    ("imports", "core/bad.py", MODULE + "from meshwright.models.layers import Linear\n"),
    ("imports", "types/bad.py", MODULE + "from meshwright.comm.grid import DENSE\n"),
    ("imports", "comm/bad.py", MODULE + "from meshwright.check import typecheck\n"),
    ("imports", "train/data/bad.py", MODULE + "from meshwright.train.config import TrainConfig\n"),
    ("imports", "backends/bad.py", MODULE + "from meshwright.train.loss import LOSS\n"),
    ("checker", "spmd.py", MODULE + "from meshwright.check import typecheck\n"),
    ("checker", "cli.py", MODULE + "import meshwright.check.mode\n"),
    ("checker", "cli.py", MODULE + "from meshwright.audit import check\n"),
    ("recipes", "recipes/bad.py", MODULE + "from meshwright.train.step import train_step\n"),
    ("length", "types/bad.py", MODULE + "x = 1\n" * LONGEST),
    ("forbidden", "core/bad.py", MODULE + "assert isinstance(x, DTensor)\n"),
    ("forbidden", "core/bad.py", MODULE + "import spmd_types\n"),
    ("forbidden", "core/bad.py", MODULE + "from torchtitan.models import llama\n"),
    ("forbidden", "core/bad.py", MODULE + f'path = "{"/".join(("", "home", "me", "data"))}"\n'),
    ("forbidden", "core/bad.py", MODULE + "x = 1  # TODO\n"),
    ("forbidden", "core/bad.py", '"""Raises ConfigError if it is bad: docstrings say `Errors:`."""\n'),
    ("forbidden", "backends/bad.py", MODULE + "module._get_fsdp_state()\n"),
    ("docstrings", "core/bad.py", MODULE + "\n\ndef public():\n    pass\n"),
    ("docstrings", "core/bad.py", MODULE + "\n\nclass Public:\n    pass\n"),
    ("docstrings", "core/bad.py", "x = 1\n"),
    ("rooms", "core/bad.py", MODULE),
    ("readmes", "core/bad.py", MODULE),
    ("readmes", "train/data/bad.py", MODULE),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule):
    assert RULES[rule](PACKAGE) == []


@pytest.mark.parametrize(("rule", "name", "text"), BROKEN)
def test_the_rule_can_be_broken(rule, name, text, tmp_path):
    file = tmp_path / "meshwright" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    assert len(RULES[rule](tmp_path / "meshwright")) == 1


def test_every_rule_is_broken_once():
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


def test_public_methods_say_what_they_do():
    names = [module.name for module in pkgutil.walk_packages(meshwright.__path__, "meshwright.")]
    loaded = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    assert [method for module in loaded for method in undocumented_methods(module)] == []


class Public:
    """Has a method that says nothing."""

    def silent(self):
        pass

    def told(self):
        """Told."""

    def _own(self):
        pass


class Heir(Public):
    """Inherits what it does not say."""

    def told(self):
        pass


def test_a_silent_method_is_noticed():
    module = ModuleType(__name__)
    module.Public, module.Heir = Public, Heir
    assert undocumented_methods(module) == [f"{__name__}.Public.silent"]


def test_tests_and_benchmarks_are_small_files_too():
    assert too_long(ROOT / "tests") + too_long(ROOT / "benchmarks") == []


@pytest.mark.parametrize("room", ["models", "core", "comm", "types"])
def test_it_asks_no_backend_and_no_checker(room):
    reached = {room_of(module) for file in files(PACKAGE / room) for module in imports(file)}
    assert reached.isdisjoint({"backends", "check", "train"})


def test_the_public_names_of_spmd():
    spmd = importlib.import_module("meshwright.spmd")
    assert sorted(spmd.__all__) == sorted(SPMD.split())
    assert all(hasattr(spmd, name) for name in spmd.__all__)


def test_the_plan_names_every_room():
    plan = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert [room for room in sorted(rooms) if f"`{room}/`" not in plan] == []
