"""Bytes by key within one checkpoint folder: in memory, as local files or in object stores."""

from shardkeep.storage.failures import OutcomeUnknownError as OutcomeUnknownError
from shardkeep.storage.local import LocalStorage as LocalStorage
from shardkeep.storage.memory import (
    MemoryStorage as MemoryStorage,
    forget_memory as forget_memory,
)
from shardkeep.storage.opening import open_storage as open_storage
from shardkeep.storage.protocols import (
    CanCreate as CanCreate,
    CanDelete as CanDelete,
    CanFetch as CanFetch,
    CanGet as CanGet,
    CanHold as CanHold,
    CanList as CanList,
    CanMap as CanMap,
    CanMeasure as CanMeasure,
    CanPutIfAbsent as CanPutIfAbsent,
    CanRead as CanRead,
    CanReadInto as CanReadInto,
    CanReplace as CanReplace,
    CanSync as CanSync,
    Entry as Entry,
    ReadCosts as ReadCosts,
    Sink as Sink,
    Storage as Storage,
    StreamSink as StreamSink,
)
