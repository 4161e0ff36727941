"""Have the C library keep freed memory that connections need again at once."""

from __future__ import annotations

from functools import cache

__all__ = ["keep_freed_memory"]

# In bytes. Half of what glibc keeps then, which is to be more than one window of a fast stream.
BLOCK = 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 2 MiB at the end of its heap, where it keeps 128 KiB otherwise.

    Bulk is received into blocks that are freed as they are read, up to a window at a time. By
    default each window is given back to the system, and comes again page by page: in processes
    whose heap happens to end with it, which are those that have imported little, that took a third
    of the rate.

    glibc raises the limit by itself, to twice the size of the largest block that it had from the
    system and that was freed: mallopt(3), M_MMAP_THRESHOLD. So one is freed here. None of its pages
    is touched. Nothing changes where the variable MALLOC_TRIM_THRESHOLD_ sets the limit, and with
    other allocators.
    """
    bytes(BLOCK)
