"""Which stage of a pipeline holds a tensor? Guessed from names, as there is no pipeline to ask."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardkeep.manifest import TensorRecord

_LAYER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_AT_THE_START = re.compile(r"emb|wte|wpe", re.IGNORECASE)


def stages_of(records: Sequence[TensorRecord], stages: int) -> list[int | None]:
    """The stage of each tensor; None for one that all stages hold.

    Stages hold consecutive layers, told by the first number in a name. Of what has none,
    embeddings go to the first stage, numbers without a dim to all, the rest to the last.

    >>> names = ["embed", "layers.0.w", "layers.1.w", "head"]
    >>> stages_of([TensorRecord(name, "F32", (2,), 0) for name in names], 2)
    [0, 0, 1, 1]
    """
    layers = [_layer_of(record.key) for record in records]
    order = {layer: at for at, layer in enumerate(sorted({n for n in layers if n is not None}))}
    return [
        _without_layer(record, stages) if layer is None else order[layer] * stages // len(order)
        for record, layer in zip(records, layers, strict=True)
    ]


def _layer_of(key: str) -> int | None:
    found = _LAYER.search(key)
    return int(found[1]) if found and len(found[1]) < 10 else None


def _without_layer(record: TensorRecord, stages: int) -> int | None:
    if not record.shape:
        return None
    return 0 if _AT_THE_START.search(record.key) else stages - 1
