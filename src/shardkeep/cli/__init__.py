"""The command line, `shardkeep`."""

from shardkeep.cli.entry import main as main
