"""`python -m shardkeep`: the command line."""

from shardkeep.cli import main

main()
