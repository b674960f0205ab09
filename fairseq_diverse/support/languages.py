"""Codes of languages."""

import re


def base_language(code: str) -> str:
    """The language alone, in lower case: of en_US, fr-CA or zh_Hant without region or script."""
    return re.split("[-_]", code.lower())[0]
