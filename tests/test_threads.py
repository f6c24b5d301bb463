"""One thread while a block lasts, also where Python threads overlap."""

import torch

from fsvi_bench.threads import one_thread


def test_blocks_that_overlap_keep_one_thread_until_the_last_ends():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first, second = one_thread(), one_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_num_threads() == 1
        second.__exit__(None, None, None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
