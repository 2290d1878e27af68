"""One target under atheris: `python -m torture.fuzz_process TARGET [options of libFuzzer]`.

Which lines of shardkeep an input reaches is told to libFuzzer, which keeps what reaches new ones
and goes on from there. It ends the process at the first input that is answered wrongly, and writes
it down.
"""

# atheris is not installed everywhere, and has no types.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["shardkeep"]):
    from torture.fuzz_targets import TARGETS, undeclared


def main() -> None:
    """Run until libFuzzer is done."""
    target = TARGETS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        wrong = undeclared(target, data)
        if wrong is not None:
            raise AssertionError(wrong)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
