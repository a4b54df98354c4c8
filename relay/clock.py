"""The system clock, for shells: what decides takes `now` as an argument."""

import time


def unix_now() -> int:
    """Seconds since 1970."""
    return int(time.time())  # noqa: TID251
