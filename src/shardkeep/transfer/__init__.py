"""Bytes between ranks' memory and storage: agree, stage, write, commit, read."""
