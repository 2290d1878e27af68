"""Which torch dtype does a dtype name of the checkpoint format stand for?"""

import torch

from shardkeep.manifest import register_value

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0FNU": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "C128": torch.complex128,
}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return found


register_value("dtype", torch.dtype, lambda dtype: str(dtype).removeprefix("torch."), _dtype)
register_value("device", torch.device, str, torch.device)
register_value("size", torch.Size, list, torch.Size)
