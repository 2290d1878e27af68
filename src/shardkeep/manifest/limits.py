"""How large may the parts of a checkpoint be?

A reader checks these before it takes memory, a writer before it writes. docs/format.md lists
them.
"""

MAX_INT = 2**63 - 1
"""Sizes, offsets, coordinates and products of shapes: torch counts in int64."""

EXACT_INT = 2**53
"""Plain integers of values stay below: beyond, readers of JSON round to doubles."""

MAX_INT_DIGITS = 4300
"""Digits of a long integer: what Python itself converts without being asked twice."""

MAX_MANIFEST_NBYTES = 2**27
"""That is some two million tensors. Parsed, it may take ten times as much memory and more."""

FREE_CONTAINERS = 2**16
MIN_NBYTES_PER_CONTAINER = 6
"""Lists and objects of JSON cost far more as Python objects than as text: beyond so many, there
must be so many bytes for each. Whatever the format itself says takes more, boxes with small numbers
apart."""

FREE_ENTRIES = 2**12
MIN_ENTRY_NBYTES = 48
"""What the shortest entry of a header takes; so many may be shorter."""

MAX_HEADER_LENGTH = 100_000_000
"""Bytes of a data file's JSON header; the safetensors package reads no longer ones."""

MAX_TREE_DEPTH = 200
MAX_JSON_DEPTH = 100
MAX_NDIM = 64
MAX_RANKS = 2**31
MAX_NUMBER = 2**31
MAX_FILES = 2**24
MAX_CELLS = 2**24

PAGE = 4096
"""Data start at a multiple of this many bytes."""

MIN_BLOCK_NBYTES = 4096
MAX_BLOCK_NBYTES = 2**24
