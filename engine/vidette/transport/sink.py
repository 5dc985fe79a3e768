"""`Sink`: how the compute thread sends by itself.

The thread owns the write side of its link and sends once per step, without waiting for the loop (through
the loop a step costs 1.3 to 75 times more: measured). The inline topology uses it as well, over a socket
pair within the process: the thread needs a descriptor to wake the loop in any case, and this one also
bounds what can pile up.
"""

from __future__ import annotations

import socket

from vidette.transport.framing import HIGH_WATER_BYTES, LinkClosed, Outbox


class Sink:
    """Frames into a non-blocking socket whose write side one thread owns.

    Args:
        sock: the socket; the sink owns it from here on.
        high_water: bytes parked from which on `full` is true.
    """

    def __init__(self, sock: socket.socket, *, high_water: int = HIGH_WATER_BYTES) -> None:
        self._sock = sock
        self._outbox = Outbox()
        self._high_water = high_water

    def put(self, frame: bytes) -> None:
        """Park a frame until the next `flush()`."""
        self._outbox.put(frame)

    def flush(self) -> bool:
        """Send what can be sent without blocking; return whether nothing is left.

        Raises:
            LinkClosed: the reader is gone.
        """
        try:
            return self._outbox.flush(self._sock)
        except OSError as error:
            raise LinkClosed(str(error)) from error

    @property
    def full(self) -> bool:
        """Whether so much is parked that nothing more should be made."""
        return self._outbox.nbytes >= self._high_water

    def fileno(self) -> int:
        """Return what to watch for writability while something is parked."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket, so that the reader sees the end; idempotent."""
        self._sock.close()
