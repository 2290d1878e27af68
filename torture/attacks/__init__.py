"""Crafted folders and files that a reader must refuse; `python -m torture.attacks` lists them."""
