"""What is written down, and how."""

from shardkeep.manifest.values import decode_value, encode_value, register_value

__all__ = ["decode_value", "encode_value", "register_value"]
