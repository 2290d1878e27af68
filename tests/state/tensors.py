"""Which tensors are awkward to copy?"""

import torch

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.int64,
]


def awkward_tensors() -> dict[str, torch.Tensor]:
    """Fresh tensors by what is special about them, each with distinct values where it can."""
    made = {str(dtype): torch.arange(1, 7).reshape(2, 3).to(dtype) for dtype in DTYPES}
    base = torch.arange(120.0)
    complex_base = torch.complex(base[:6], base[6:12])
    return made | {
        "0-dim": torch.tensor(5.5),
        "empty": torch.empty(0, 3),
        "empty slice": base[4:4],
        "transposed": base[:6].reshape(2, 3).clone().t(),
        "channels last": base.reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 4),
        "column": base.reshape(12, 10).clone()[:, 3],
        "columns": base.reshape(12, 10).clone()[:, 2:9],
        "every other": base.clone()[1::2],
        "offset": base.clone()[100:],
        "odd offset": base.to(torch.uint8)[7:13],
        "conjugated": complex_base.clone().conj(),
        "negated": complex_base.clone().conj().imag,
        "parameter": torch.nn.Parameter(base[:4].clone()),
        "of a graph": torch.nn.Parameter(base[:4].clone()) * 2,
    }


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in row-major order as bytes: equal only if every bit is."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8)
