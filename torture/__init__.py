"""Campaigns that try to make a checkpoint be lost, torn or silently wrong."""
