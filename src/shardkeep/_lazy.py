"""How does a package offer names from modules that it has not imported?

`import torch` takes more than a second, so `import shardkeep` must not pay for it. A package
lists where its names live; the module is imported when the name is first used.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_exports(
    package: str, table: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`(__getattr__, __dir__, __all__)` for `package`, whose names live in `table[name]`.

    A name that maps to the submodule of that same name is the submodule itself. No other name may
    equal a submodule's: importing `package.name` from anywhere would replace the exported object.
    """
    names = sorted(table)

    def __getattr__(name: str) -> object:  # noqa: N807
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(table[name])
        value = module if module.__name__ == f"{package}.{name}" else getattr(module, name)
        # From now on the name is found without coming here.
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(sys.modules[package]), *names})

    return __getattr__, __dir__, names
