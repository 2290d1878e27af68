import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from shardkeep._lazy import lazy_exports

PACKAGE = "lazy_example"


@pytest.fixture
def package(tmp_path, monkeypatch) -> Iterator[ModuleType]:
    """A package that offers one function of its own, one of another module, and a submodule."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    folder.joinpath("__init__.py").write_text(
        "from shardkeep._lazy import lazy_exports\n"
        "__getattr__, __dir__, __all__ = lazy_exports(__name__, {\n"
        "    'twice': 'lazy_example.numbers_of_ours',\n"
        "    'extra': 'lazy_example.extra',\n"
        "    'gone': 'lazy_example.numbers_of_ours',\n"
        "})\n"
    )
    folder.joinpath("numbers_of_ours.py").write_text("def twice(n):\n    return 2 * n\n")
    folder.joinpath("extra.py").write_text("NAME = 'extra'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__(PACKAGE)
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_a_module_is_imported_when_its_name_is_first_used(package):
    assert f"{PACKAGE}.numbers_of_ours" not in sys.modules

    assert package.twice(21) == 42
    assert f"{PACKAGE}.numbers_of_ours" in sys.modules


def test_a_used_name_is_found_without_the_table(package):
    assert "twice" not in vars(package)
    used = package.twice

    assert vars(package)["twice"] is used


def test_a_name_that_maps_to_its_own_submodule_is_the_submodule(package):
    assert package.extra.NAME == "extra"


def test_listing_names_imports_nothing(package):
    assert {"twice", "extra", "__name__"} <= set(dir(package))
    assert package.__all__ == ["extra", "gone", "twice"]
    assert f"{PACKAGE}.extra" not in sys.modules


def test_an_unknown_name_is_an_attribute_error_that_names_the_package(package):
    with pytest.raises(AttributeError, match="'lazy_example' has no attribute 'thrice'"):
        package.thrice  # noqa: B018
    assert not hasattr(package, "__wrapped__")


def test_a_table_entry_that_its_module_lacks_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=r"'lazy_example\.numbers_of_ours'.*'gone'"):
        package.gone  # noqa: B018


def test_the_names_of_the_table_come_sorted():
    _, _, names = lazy_exports("any", {"b": "any.x", "a": "any.y"})

    assert names == ["a", "b"]
