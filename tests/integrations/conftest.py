"""Ranks for what plugs in, started once."""

from tests.translate.conftest import dcp_pool as dcp_pool
