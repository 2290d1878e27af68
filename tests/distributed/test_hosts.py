"""Real jobs on two hosts: network namespaces with a cable between them, and a disk for each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import ROOT
from torture.networks import Hosts, cannot_network, two_hosts

SECONDS = 120.0


@pytest.fixture(scope="module")
def net() -> Iterator[Hosts]:
    if why := cannot_network():
        pytest.skip(why)
    with two_hosts() as hosts:
        yield hosts


def run_job(net: Hosts, act: str, shared: Path, disks: Sequence[Path]) -> list[dict[str, Any]]:
    """What each rank of `hosts_job` says; two on each host, where `here` is that host's disk."""
    here = shared / "here"
    here.mkdir(exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable"}
    agents: list[subprocess.Popen[str]] = []
    for host, disk in enumerate(disks):
        disk.mkdir(exist_ok=True)
        # What `ip netns exec` runs has mounts of its own, too.
        command = ["ip", "netns", "exec", net.names[host]]
        command += ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(disk)]
        command += [
            str(here),
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            str(len(disks)),
        ]
        command += ["--node-rank", str(host), "--nproc-per-node", "2"]
        command += ["--master-addr", net.address, "--master-port", "29431"]
        command += ["-m", "tests.distributed.hosts_job", act, str(shared), str(here)]
        agents.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
    try:
        said = [agent.communicate(timeout=SECONDS)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0] * len(agents), "\n".join(said)
    ranks = range(2 * len(disks))
    return [json.loads((shared / f"{act}-{rank}.json").read_text()) for rank in ranks]


@pytest.fixture(scope="module")
def saved(net, tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder with two disks and the slow tier, and what the ranks say of their saves."""
    shared = tmp_path_factory.mktemp("hosts")
    return shared, run_job(net, "save", shared, [shared / "disk-0", shared / "disk-1"])


def test_a_save_to_disks_of_the_hosts_own_says_so_and_names_them(saved):
    for said in saved[1]:
        text = said["node-local"]
        assert "does not see what ranks 2-3 wrote" in text
        # The hosts have one name here: they are told apart all the same.
        assert "#1" in text
        assert "#2" in text
        assert "local=" in text


def test_each_host_has_its_own_files_and_a_copy_of_the_other_hosts(saved):
    shared, said = saved
    assert [one["steps"] for one in said] == [[1, 2]] * 4
    for disk in ("disk-0", "disk-1"):
        files = sorted(p.name for p in (shared / disk / "step-00000002").glob("*.safetensors"))
        slow = sorted(p.name for p in (shared / "slow" / "step-00000002").glob("*.safetensors"))
        assert files == slow
        for name in files:
            copy = (shared / disk / "step-00000002" / name).read_bytes()
            assert copy == (shared / "slow" / "step-00000002" / name).read_bytes()


def test_a_fresh_host_and_the_one_that_is_left_restore_from_its_disk(net, saved, tmp_path):
    shared, _ = saved
    survivor = tmp_path / "survivor"
    shutil.copytree(shared / "disk-1", survivor)
    # The fresh one comes first: its rank 0 speaks for all, and has nothing.
    said = run_job(net, "restore", tmp_path, [tmp_path / "fresh", survivor])

    assert [one["step"] for one in said] == [2] * 4
    assert all(one["whole"] for one in said)
    assert [one["read"] for one in said[:2]] == [0, 0]
    assert all(one["received"] > 0 for one in said[:2])
    # What was not in the slow tier yet is brought there.
    assert [one["uploaded"] for one in said] == [[2]] * 4


def test_damaged_files_are_read_from_the_host_that_has_a_copy(net, saved, tmp_path):
    shared, _ = saved
    disks = [tmp_path / "disk-0", tmp_path / "disk-1"]
    for disk in disks:
        shutil.copytree(shared / disk.name, disk)
    # The newest file of each host's first rank is spoilt where it was written: the peer's is not.
    for disk, rank in zip(disks, (0, 2), strict=True):
        (name,) = (disk / "step-00000002").glob(f"*-{rank:05d}-0.safetensors")
        content = bytearray(name.read_bytes())
        content[-5] ^= 1
        name.write_bytes(content)
    said = run_job(net, "restore", tmp_path, disks)

    assert [one["step"] for one in said] == [2] * 4
    assert all(one["whole"] for one in said)
