"""What did a server do meanwhile? Its own processor time, and what it says it was asked."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from urllib.request import urlopen

from torture.object_servers import S3Server

_COUNT = re.compile(r'SeaweedFS_s3_request_total\{.*type="(\w+)".*\} (\S+)')
_SENT = re.compile(r"SeaweedFS_s3_bucket_traffic_sent_bytes_total\{.*\} (\S+)")


@dataclass(frozen=True)
class ServerLoad:
    """Since the server started, or between two looks."""

    cpu_seconds: float
    requests: Counter[str]
    """By their kind, as the server names them."""
    sent_nbytes: int

    @classmethod
    def of(cls, server: S3Server) -> ServerLoad:
        """As it is now."""
        with urlopen(server.metrics_url) as answer:
            said = answer.read().decode()
        requests: Counter[str] = Counter()
        for kind, count in _COUNT.findall(said):
            requests[kind] += int(float(count))
        sent = sum(int(float(nbytes)) for nbytes in _SENT.findall(said))
        return cls(_cpu_seconds(server.pid), requests, sent)

    def since(self, earlier: ServerLoad) -> ServerLoad:
        return ServerLoad(
            self.cpu_seconds - earlier.cpu_seconds,
            self.requests - earlier.requests,
            self.sent_nbytes - earlier.sent_nbytes,
        )


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        # Behind the program's name, which may have blanks: user and system time are 12th and 13th.
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
