"""An export as the command line asks for it, with options of a test's own."""

from shardkeep.transfer.progress import Meter
from shardkeep.translate.opening import open_source

_OPTIONS = {
    "keys": None,
    "prefix": "",
    "rename": None,
    "dtype": None,
    "max_memory_nbytes": 2**20,
    "threads": 2,
    "force": False,
    "verify": True,
}


def export_by(act, source, dest, **options):
    """What `act` reports of an export of the checkpoint at `source`."""
    opened = open_source(source)
    try:
        with Meter("exporting", None, show=False) as meter:
            return act(opened, dest, meter=meter, **{**_OPTIONS, **options})
    finally:
        opened.storage.close()
