"""`python -m shardkeep`: the command line, also for several processes by torchrun."""

from shardkeep.cli.entry import main
from shardkeep.cli.ranks import read_launch

if __name__ == "__main__":
    read_launch()
    main()
