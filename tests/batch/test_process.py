"""A process that only answers a file is tuned for that."""

import gc
import sys

from sruserve.batch.process import own_process


def test_collections_visit_no_older_object_and_threads_take_shorter_turns() -> None:
    kept, interval = [list[int]() for _ in range(100)], sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)  # Python's default
        with own_process():
            assert not {*map(id, kept)} & {*map(id, gc.get_objects())}
            assert sys.getswitchinterval() < 0.005
        assert {*map(id, kept)} <= {*map(id, gc.get_objects())}
        assert sys.getswitchinterval() == 0.005
    finally:
        sys.setswitchinterval(interval)
