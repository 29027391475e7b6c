"""Moves batches to the devices in the background, a few steps ahead of the training loop."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator

import jax

from jaxnet.data.batches import Batch

DeviceBatch = dict[str, jax.Array]


class DevicePrefetch:
    """Iterates over `batches` as global arrays that a background thread makes up to `depth` ahead.

    Each process gives its own part of a global batch; dim 0 is sharded as `sharding` says, and rows lie in
    the order of the sharding's devices. On a CPU a global array may share the memory of the array given,
    which must therefore be a fresh one. An exception of `batches` is raised by `next()`, after the batches
    that came before it. Close it, or use it in a `with` statement, to end the thread; dropping it or leaving
    the interpreter ends the thread too.

    >>> device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    >>> from jaxnet.data import Digits, Shard, eval_batches
    >>> host_batches = eval_batches(Digits().load('test'), batch_size=90, shard=Shard(0, 1))
    >>> with DevicePrefetch(host_batches, device) as batches:
    ...     [batch['image'].shape for batch in batches]
    [(90, 8, 8, 1), (90, 8, 8, 1), (90, 8, 8, 1), (90, 8, 8, 1)]

    Attributes:
        wait_seconds: how long `next()` has blocked so far, in seconds; set it to 0 to start anew.
    """

    def __init__(self, batches: Iterator[Batch], sharding: jax.sharding.Sharding, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.wait_seconds = 0.0
        self._lane = _Lane(depth)
        # The thread must not refer to self: else self would never be collected, and the thread never end.
        thread = threading.Thread(
            target=_fill, args=(self._lane, batches, sharding), name="device-prefetch", daemon=True
        )
        self._stop = weakref.finalize(self, _stop, self._lane, thread, batches)
        # Exit hooks run last in, first out: this one before JAX takes its devices down.
        atexit.register(self._stop)
        thread.start()

    def __iter__(self) -> DevicePrefetch:
        return self

    def __next__(self) -> DeviceBatch:
        start = time.perf_counter()
        try:
            return self._lane.take()
        finally:
            self.wait_seconds += time.perf_counter() - start

    def close(self) -> None:
        """End the thread, after the batch that it is making; `next()` then raises StopIteration."""
        self._stop()
        atexit.unregister(self._stop)

    def __enter__(self) -> DevicePrefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Lane:
    """A bounded hand-over from one thread to another that either side can end."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._ready: deque[DeviceBatch] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def wait_for_room(self) -> bool:
        """Wait until another batch may be made; False once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._ready) < self._depth)
            return not self._ended

    def put(self, batch: DeviceBatch) -> None:
        with self._changed:
            if not self._ended:
                self._ready.append(batch)
            self._changed.notify_all()

    def take(self) -> DeviceBatch:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            if not self._ready:
                raise self._error or StopIteration
            self._changed.notify_all()
            return self._ready.popleft()

    def end(self, error: BaseException | None) -> None:
        """No batch follows those that are ready, for this reason."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._ended, self._error = True, None
            self._ready.clear()
            self._changed.notify_all()


def _fill(lane: _Lane, batches: Iterator[Batch], sharding: jax.sharding.Sharding) -> None:
    error: BaseException | None = None
    try:
        while lane.wait_for_room():
            lane.put(_to_devices(next(batches), sharding))
    except StopIteration:
        pass
    except BaseException as raised:
        error = raised
    lane.end(error)


def _to_devices(batch: Batch, sharding: jax.sharding.Sharding) -> DeviceBatch:
    return {key: jax.make_array_from_process_local_data(sharding, local) for key, local in batch.items()}


def _stop(lane: _Lane, thread: threading.Thread, batches: Iterator[Batch]) -> None:
    lane.close()
    if thread is not threading.current_thread():  # the collector may run this anywhere
        thread.join()
    close = getattr(batches, "close", None)  # Grain's iterators and generators have one
    if close is not None:
        close()
