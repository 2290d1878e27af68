"""Which names does shardkeep offer? Each is imported when it is first used."""

from typing import TYPE_CHECKING

from shardkeep._lazy import lazy_exports

__version__ = "0.1.0.dev0"

# Two lists of the same names: the type checker reads the first, the interpreter the second.
if TYPE_CHECKING:
    from shardkeep.errors import (
        CompanionMismatch as CompanionMismatch,
        ConflictError as ConflictError,
        CorruptError as CorruptError,
        CoverError as CoverError,
        DeadlineError as DeadlineError,
        InvalidError as InvalidError,
        LayoutError as LayoutError,
        NotFoundError as NotFoundError,
        RankFailedError as RankFailedError,
        RankInputError as RankInputError,
        RanksDisagreeError as RanksDisagreeError,
        ShardkeepError as ShardkeepError,
        StorageError as StorageError,
        UnsupportedError as UnsupportedError,
    )
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "CompanionMismatch": "shardkeep.errors",
            "ConflictError": "shardkeep.errors",
            "CorruptError": "shardkeep.errors",
            "CoverError": "shardkeep.errors",
            "DeadlineError": "shardkeep.errors",
            "InvalidError": "shardkeep.errors",
            "LayoutError": "shardkeep.errors",
            "NotFoundError": "shardkeep.errors",
            "RankFailedError": "shardkeep.errors",
            "RankInputError": "shardkeep.errors",
            "RanksDisagreeError": "shardkeep.errors",
            "ShardkeepError": "shardkeep.errors",
            "StorageError": "shardkeep.errors",
            "UnsupportedError": "shardkeep.errors",
        },
    )
