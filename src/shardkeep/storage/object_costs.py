"""What does a request to this store cost? Measured on the requests that are made anyway.

Small answers tell how long a request takes by itself, large ones how fast its bytes come.
"""

from __future__ import annotations

import threading

from shardkeep.storage.protocols import ReadCosts

# Of a store in the same region, until something was measured.
_REQUEST_SECONDS = 0.03
_NBYTES_PER_SECOND = 60e6
_SMALL_NBYTES = 64 * 1024
_LARGE_NBYTES = 1024 * 1024
IN_FLIGHT = 16


class MeasuredCosts:
    """Running estimates; threads may share it."""

    def __init__(self, *, in_flight: int = IN_FLIGHT) -> None:
        self._in_flight = in_flight
        self._seconds: float | None = None
        self._speed: float | None = None
        self._lock = threading.Lock()

    def saw(self, nbytes: int, seconds: float) -> None:
        """One answer has come."""
        with self._lock:
            if nbytes <= _SMALL_NBYTES:
                # The quickest: the others waited for something else, such as the first handshake.
                self._seconds = min(seconds, self._seconds or seconds)
            elif nbytes >= _LARGE_NBYTES:
                spent = max(seconds - (self._seconds or 0.0), seconds / 2)
                speed = nbytes / spent
                self._speed = speed if self._speed is None else 0.8 * self._speed + 0.2 * speed

    def now(self) -> ReadCosts:
        """The estimates as they are."""
        return ReadCosts(
            self._seconds if self._seconds is not None else _REQUEST_SECONDS,
            self._speed if self._speed is not None else _NBYTES_PER_SECOND,
            self._in_flight,
        )
