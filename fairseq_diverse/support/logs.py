"""What fairseq logs."""

import logging


class Once(logging.Filter):
    """Passes each message once, but warnings and errors always."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        known = text in self.said
        self.said.add(text)
        return not known or record.levelno > logging.INFO


ONCE = Once()


def log_batches_once() -> None:
    """Log once how batches are made, which fairseq-interactive does anew for every sentence; idempotent."""
    logging.getLogger("fairseq.tasks.fairseq_task").addFilter(ONCE)
