"""The parser of command lines."""

import argparse
from typing import Any, NoReturn

from fairseq_diverse.support.errors import printable


class Parser(argparse.ArgumentParser):
    """argparse's, which takes numbers that are none of C, and makes an empty list of ``--flag=--``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.register("type", int, whole_number)

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)


def whole_number(text: str) -> int:
    """An ``int`` of C, in place of Python's. Raises ArgumentTypeError, ValueError: it is larger, or not a whole
    number."""
    if abs(number := int(text)) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text}: at most 2147483647")
    return number


whole_number.__name__ = "int"  # argparse names it in "invalid int value"
