"""Codes of languages."""

import re

# sacreBLEU's tokenizer of a target language; 13a for all others
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


def base_language(code: str) -> str:
    """The language alone, in lower case: of en_US, fr-CA or zh_Hant without region or script."""
    return re.split("[-_]", code.lower())[0]
