"""Run a script, and let go of all that it made before the interpreter ends.

What is still there at the very end, such as a model in DDP, holds its process group, and a thread
of gloo that gives up its last work then ends the process with SIGABRT: seen in torch 2.13 on a busy
machine, with and without shardkeep.
"""

import gc
import runpy
import sys

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    gc.collect()
