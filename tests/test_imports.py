"""Importing shardkeep stays cheap, and what it lists is there."""

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import shardkeep

ROOT = Path(__file__).parent.parent
PACKAGE = Path(shardkeep.__file__).parent
PURE_FOLDERS = [
    name for name in ("boxes", "layouts", "manifest", "plan") if (PACKAGE / name).is_dir()
]
LAZY_INITS = [
    path for path in sorted(PACKAGE.rglob("__init__.py")) if "lazy_exports" in path.read_text()
]


def modules_after(statement: str) -> set[str]:
    """The top-level packages that a new interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def package_of(init: Path) -> str:
    return ".".join(("shardkeep", *init.parent.relative_to(PACKAGE).parts))


def type_checked_imports(init: Path) -> dict[str, str]:
    """name -> module, as the type checker reads them in the `if TYPE_CHECKING:` block."""
    blocks = [node for node in ast.parse(init.read_text()).body if isinstance(node, ast.If)]
    return {
        alias.asname or alias.name: (
            f"{node.module}.{alias.name}"
            if f"{node.module}.{alias.name}" == f"{package_of(init)}.{alias.name}"
            else str(node.module)
        )
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def lazy_table(init: Path) -> dict[str, str]:
    """name -> module, as the interpreter reads them in the call of `lazy_exports`."""
    (table,) = [
        node for node in ast.walk(ast.parse(init.read_text())) if isinstance(node, ast.Dict)
    ]
    return ast.literal_eval(table)


def test_importing_shardkeep_imports_neither_torch_nor_numpy():
    loaded = modules_after("import shardkeep")

    assert "shardkeep" in loaded
    assert not loaded & {"torch", "numpy", "rich", "msgspec"}


def test_torch_would_be_seen():
    assert "torch" in modules_after("import torch")


@pytest.mark.parametrize("folder", PURE_FOLDERS)
def test_a_pure_layer_does_not_import_torch(folder: str):
    modules = [f"shardkeep.{folder}"] + [
        f"shardkeep.{folder}.{module.name}" for module in iter_modules([str(PACKAGE / folder)])
    ]

    assert "torch" not in modules_after(f"import {', '.join(modules)}")


def test_every_pure_layer_is_under_the_contract_that_forbids_torch():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = [
        each for each in config["tool"]["importlinter"]["contracts"] if each["id"] == "pure"
    ]

    assert {f"shardkeep.{folder}" for folder in PURE_FOLDERS} <= set(contract["source_modules"])


@pytest.mark.parametrize("init", LAZY_INITS, ids=package_of)
def test_every_listed_name_resolves(init: Path):
    package = import_module(package_of(init))

    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("init", LAZY_INITS, ids=package_of)
def test_type_checker_and_interpreter_see_the_same_names(init: Path):
    assert type_checked_imports(init) == lazy_table(init)


@pytest.mark.parametrize("init", LAZY_INITS, ids=package_of)
def test_no_exported_name_hides_behind_a_submodule(init: Path):
    package = package_of(init)
    submodules = {module.name for module in iter_modules([str(init.parent)])}
    table = lazy_table(init)

    hidden = [name for name in submodules & set(table) if table[name] != f"{package}.{name}"]
    assert hidden == []
    # A submodule that holds an object of its own name cannot export it from here.
    shadowed = [
        name
        for name in submodules & set(table)
        if hasattr(import_module(f"{package}.{name}"), name)
    ]
    assert shadowed == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'shardkeep' has no attribute 'savee'"):
        shardkeep.savee  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
