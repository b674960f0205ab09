"""One line instead of a stack trace for a user's mistake."""

import functools
import re
import sys
from types import TracebackType
from typing import Any, NoReturn

# fairseq's own words for mistakes of its user, as the last line of a stack trace has them, and the line shown instead.
FAIRSEQ = {
    r"fairseq_diverse\.support\.errors\.UserError: (.*)": r"\1",  # of a process that torch spawned, one of several GPUs
    r"FileNotFoundError: \[Errno 2\] No such file or directory: '(.*)'": r"\1: no such file or folder",
    r"Exception: Could not infer language pair.*": (
        "the data folder holds no prepared pair of languages (such as train.en-de.en.bin); give another folder, or "
        "name the languages with --source-lang and --target-lang"
    ),
    r"FileNotFoundError: Dataset not found: (\S+) \((.*)\)": (
        r"\2: no split \1 of these languages; see --source-lang, --target-lang, and --train-subset, --valid-subset or "
        "--gen-subset"
    ),
    r"Exception: Size of sample #(\d+) is invalid .*since max_positions=(.*), skip this example.*": (
        r"sentence \1 (counted from 0) is longer than the \2 positions of model and task: raise --max-source-positions "
        "and --max-target-positions in training, or leave such sentences out with --skip-invalid-size-inputs-valid-test"
    ),
    r"Exception: The dataset is empty\..*": (
        "no batch is left: every sentence is too long (--max-source-positions, --max-target-positions, --max-tokens), "
        "or fewer are left than --required-batch-size-multiple"
    ),
    r"AssertionError: (--\w.*|Must specify batch size .*)": r"\1",
}


class UserError(ValueError):
    """A flag, file or value that the user can fix; its text says what to do."""


def show_user_errors_in_one_line() -> None:
    """Let a process that dies of a user's mistake print one line; every other exception is shown as before.

    A ``UserError`` is one, and so is what fairseq says in the words of ``FAIRSEQ`` or raises as a plain ``Exception``.
    """
    shown_before = sys.excepthook
    if hasattr(shown_before, "shows_user_errors"):
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        line = str(error) if issubclass(kind, UserError) else _in_one_line(kind, error)
        if line is None:
            shown_before(kind, error, trace)
        else:
            print(f"error: {line}", file=sys.stderr)

    show.shows_user_errors = True  # type: ignore[attr-defined]

    sys.excepthook = show


def _in_one_line(kind: type[BaseException], error: BaseException) -> str | None:
    """What an exception says, where it is known as a user's mistake; None for any other."""
    text = str(error).strip()
    for pattern, line in FAIRSEQ.items():
        if found := re.search(rf"^{pattern}$", f"{kind.__name__}: {text}", re.MULTILINE):
            return found.expand(line)
    if kind is not Exception or not text:  # fairseq raises a plain Exception for what its user did
        return None
    cause = str(error.__context__ or "").strip()
    return text.splitlines()[0] + (f" ({cause.splitlines()[-1].strip()[:300]})" if cause else "")


def refuse_positions_that_were_not_learned() -> None:
    """Let learned positions say which flag is too small for a sentence; called again, it changes nothing."""
    from fairseq.modules import LearnedPositionalEmbedding

    if not hasattr(LearnedPositionalEmbedding.forward, "__wrapped__"):
        LearnedPositionalEmbedding.forward = _within_positions(LearnedPositionalEmbedding.forward)


def _within_positions(forward: Any) -> Any:
    @functools.wraps(forward)
    def within(self: Any, input: Any, incremental_state: Any = None, positions: Any = None) -> Any:
        if positions is None and input.size(1) > self.max_positions:
            step = incremental_state is not None  # its position is the width, padding included
            longest = input.size(1) if step else int(input.ne(self.padding_idx).sum(1).max())
            if longest > self.max_positions:
                raise UserError(
                    f"a sentence has {longest} subwords, but the model has learned positions for {self.max_positions}: "
                    "leave longer sentences out, or train with more --max-source-positions and --max-target-positions"
                )
        return forward(self, input, incremental_state, positions)

    return within


def end_with(message: str) -> NoReturn:
    """End the process with one line, where another program would show a ``UserError`` below a trace of its own."""
    raise SystemExit(f"error: {message}")
