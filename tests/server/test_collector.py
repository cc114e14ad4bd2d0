"""The garbage collector pauses for a block, and leaves alone what the block has made."""

import gc

from sruserve.server.collector import paused_collector


def test_nothing_is_collected_in_a_block_nor_is_what_it_made_visited_later() -> None:
    with paused_collector():
        assert not gc.isenabled()
        made = [object()]
    assert gc.isenabled()
    assert not any(each is made for each in gc.get_objects())


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
