"""Being asked to end (SIGTERM, or a terminal that goes away) ends as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

INTERRUPTED = 130
ASKING_TO_END = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """KeyboardInterrupt from these signals too, so that what was measured is judged and written.

    A signal that is ignored (nohup) stays ignored. Does nothing in a thread, where Python knows no
    signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ASKING_TO_END}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
