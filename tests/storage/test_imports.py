import subprocess
import sys


def test_storage_needs_neither_torch_nor_numpy():
    code = "import sys, shardkeep.storage; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout == "set()\n", done.stderr
