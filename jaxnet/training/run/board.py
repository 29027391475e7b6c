"""TensorBoard's files of scalars, appended record by record.

tensorboardX's own writer has a thread that ends at the first failure of the disk, after which a run that writes on
would wait for it for ever.
"""

import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxnet.training.run.appended import Appended


class Board:
    """One new file of events in `directory`; raises OSError if it cannot be made."""

    def __init__(self, directory: Path, *, fence: Callable[[], None] = lambda: None) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2  # takes a while to import

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        directory.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = Appended(directory / name, fence=fence)
        self._file.append(_record(self._event(wall_time=time.time(), file_version="brain.Event:2")))

    def write(self, step: int, values: dict[str, Any]) -> None:
        """The values of a step, by name."""
        scalars = [self._summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._file.append(_record(self._event(wall_time=time.time(), step=step, summary=self._summary(value=scalars))))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _record(event: Any) -> bytes:
    """An event as a TFRecord: its length, its bytes, and the checksum of each."""
    from tensorboardX.record_writer import masked_crc32c

    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    return b"".join(
        (length, struct.pack("<I", masked_crc32c(length)), content, struct.pack("<I", masked_crc32c(content)))
    )
