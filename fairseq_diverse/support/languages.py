"""Codes of languages."""

import re

# sacreBLEU's tokenizer of a target language; 13a for all others
TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}


def base_language(code: str) -> str:
    """The language alone, in lower case: of en_US, fr-CA or zh_Hant without region or script."""
    return re.split("[-_]", code.lower())[0]
