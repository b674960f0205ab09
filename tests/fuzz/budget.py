"""Time of a fuzz test: a fixed time in `make test`, `FAIRSEQ_DIVERSE_FUZZ` times as long in `make fuzz`."""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

TIMES = float(os.environ.get("FAIRSEQ_DIVERSE_FUZZ", "1"))


def budget(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator for a test, under ``@given``: examples are tried until ``seconds`` have passed, at least one."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        end: list[float] = []

        @functools.wraps(test)
        def within(*args: Any, **kwargs: Any) -> None:
            now = time.monotonic()
            if not end:
                end.append(now + seconds * TIMES)
            elif now > end[0]:
                return
            try:
                test(*args, **kwargs)
            except BaseException:
                end[0] = float("inf")  # hypothesis tries it again, and smaller ones
                raise

        many = max(1, int(200 * seconds * TIMES))
        checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
        return settings(max_examples=many, deadline=None, suppress_health_check=checks, database=None)(within)

    return decorate
