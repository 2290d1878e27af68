"""Checkpoints in the formats of others: read in place, imported and exported."""
