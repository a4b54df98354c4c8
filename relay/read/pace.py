"""The pace of a query: its work on the loop counts for its connection, and others have turns."""

from __future__ import annotations

from time import thread_time
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from relay.read.peer import Peer

T = TypeVar("T")

_REST_S: Final = 0.002
"""Work of a query on the loop after which others go on."""


class Pace:
    """The pace of one query, which works all the time except between `stop` and `resume`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        # Not by the clock: waiting for the processor is no work.
        self._began = thread_time()
        self._is_due = False

    def stop(self) -> None:
        """The query waits for something. Its work so far counts now: others may have turns next."""
        self._is_due |= self._peer.worked(thread_time() - self._began)

    def resume(self) -> None:
        self._began = thread_time()

    async def rest(self) -> None:
        """Between two pieces of work."""
        worked = thread_time() - self._began
        if worked >= _REST_S or self._is_due:
            self._peer.worked(worked)
            await self._peer.turn(0.0)
            self._began, self._is_due = thread_time(), False

    @coroutine
    def through(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """The result of `work`. It stops while that waits, as for a thread."""
        steps = work.__await__()
        failure: BaseException | None = None
        """A cancellation, for `work`."""
        try:
            while True:
                waited_for = next(steps) if failure is None else steps.throw(failure)
                failure = None
                self.stop()
                try:
                    yield waited_for
                except BaseException as error:  # noqa: BLE001
                    failure = error
                self.resume()
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            failure = None  # its traceback has this frame: nothing would be freed at once
