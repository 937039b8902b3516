"""ReadAhead: the score files of a run's epochs are read, and so kept by their `Run`, while nobody waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import QueryParams

from endoscope.errors import EndoscopeError
from endoscope.runs import Epoch
from endoscope.viewer.library import Library, Selection, epoch_of, scores_name

_MOST_BYTES = 32 << 20  # of score files that are read ahead; a run keeps more
_PAUSE_S = 0.02


class _SomebodyWaits(Exception):
    """The reading ends here."""


class ReadAhead:
    """Reads on one thread, those near the epoch that was asked for last first; leaves off when somebody waits.

    >>> ahead = ReadAhead(library)
    >>> with ahead.paused():
    ...     table = epoch.scores                # nothing else is read meanwhile
    >>> ahead.read_beside(epoch)
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._wanted: Epoch | None = None
        self._works = False
        self._waiting = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Somebody waits: nothing else is read."""
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def read_for(self, query: QueryParams) -> None:
        """What a page with this query will ask for; nothing when there is no such."""
        try:
            selection = Selection.of(query, self._library)
        except EndoscopeError:
            return  # the page says so
        self.read_beside(epoch_of(selection.run, selection.epoch))

    def read_beside(self, epoch: Epoch | None) -> None:
        """Begin with this epoch and those near it; at once, on another thread."""
        if epoch is None or epoch.number is None:
            return
        with self._lock:
            self._wanted = epoch
            if self._works:
                return
            self._works = True
        threading.Thread(target=self._work, name="endoscope-read-ahead", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                epoch, self._wanted = self._wanted, None
                if epoch is None:
                    self._works = False
                    return
            self._read(epoch)

    def _read(self, epoch: Epoch) -> None:
        left = _MOST_BYTES
        for other in near(epoch):
            left -= _size(other)
            if left < 0 or not self._read_one(other):
                return

    def _read_one(self, epoch: Epoch) -> bool:
        """False when another epoch was asked for since."""
        while self._may_go_on():
            try:
                epoch.read_scores(self._leave_off)  # what is wrong with it is told when it is asked for
            except _SomebodyWaits:
                continue  # from the beginning: to go on later would keep the file from those who wait for it
            return True
        return False

    def _leave_off(self) -> None:
        with self._lock:
            if self._waiting or self._wanted is not None:
                raise _SomebodyWaits

    def _may_go_on(self) -> bool:
        """Whether nobody waits any more, and no other epoch was asked for since."""
        while True:
            with self._lock:
                if self._wanted is not None:
                    return False
                if not self._waiting:
                    return True
            threading.Event().wait(_PAUSE_S)


def near(epoch: Epoch) -> list[Epoch]:
    """The scored epochs of the run, the nearest first, of two as near the earlier: it is needed for a change."""
    scored = [one for one in epoch.run.epochs if one.number is not None and one.holds(scores_name(one))]
    return sorted(scored, key=lambda one: (abs((one.number or 0) - (epoch.number or 0)), one.number or 0))


def _size(epoch: Epoch) -> int:
    try:
        return (epoch.path / scores_name(epoch)).lstat().st_size
    except OSError:
        return 0
