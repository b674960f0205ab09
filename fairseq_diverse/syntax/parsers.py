"""spaCy and benepar behind one interface: sentences as lists of words in, their trees as text out."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fairseq_diverse.errors import UserError
from fairseq_diverse.syntax.escapes import with_brackets_escaped

KINDS = {"dependency": "spacy", "constituency": "benepar"}
MODELS = {
    ("spacy", "en"): "en_core_web_sm",
    ("spacy", "de"): "de_core_news_sm",
    ("benepar", "en"): "benepar_en3",
    ("benepar", "de"): "benepar_de2",
}
SUBBATCH_TOKENS = 500  # of benepar: larger subbatches are slower on a CPU, and take gigabytes for long sentences


class Parser(Protocol):
    """A loaded parser; words are given, never split or joined."""

    def parse(self, sentences: Sequence[list[str]]) -> list[str]:
        """One tree a sentence, in their order; any exception fails all of them."""


class Spacy:
    """Dependencies as blocks of CoNLL-U without their comments.

    Args:
        model: name of an installed model, or a folder.

    Raises:
        UserError: spaCy or the model is missing.
    """

    def __init__(self, model: str) -> None:
        try:
            import spacy
        except ImportError:
            raise UserError("--parser spacy: not installed; run: pip install 'fairseq-diverse[syntax]'") from None
        try:
            self.nlp = spacy.load(model, exclude=["ner", "lemmatizer", "textcat"])
        except (OSError, ValueError) as error:
            hint = f"get it with: python -m spacy download {model}, or give the folder of a spaCy model"
            raise UserError(
                f"--model {model}: spaCy cannot load it ({_first_line(error)}); {_or_folder(model, hint)}"
            ) from None
        if "parser" not in self.nlp.pipe_names:
            raise UserError(f"--model {model}: has no dependency parser, only {', '.join(self.nlp.pipe_names)}")

    def parse(self, sentences: Sequence[list[str]]) -> list[str]:
        from spacy.tokens import Doc

        docs = []
        for words in sentences:
            starts: list[bool | int | None] = [i == 0 for i in range(len(words))]  # a line is one sentence
            docs.append(Doc(self.nlp.vocab, words=words, sent_starts=starts))
        return ["".join(map(_conllu_line, doc)) for doc in self.nlp.pipe(docs, batch_size=256)]


def _conllu_line(token: Any) -> str:
    head = 0 if token.head.i == token.i else token.head.i + 1
    relation = "root" if not head else token.dep_ or "_"
    return f"{token.i + 1}\t{token.text}\t_\t{token.pos_ or '_'}\t{token.tag_ or '_'}\t_\t{head}\t{relation}\t_\t_\n"


class Benepar:
    """Constituents as one PTB bracketing a line.

    Args:
        model: name of a downloaded model, or a folder.
        language: of the text.

    Raises:
        UserError: benepar or the model is missing.
    """

    def __init__(self, model: str, language: str) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        warnings.filterwarnings("ignore", message=".*arg_constraints.*")
        try:
            import benepar
        except ImportError:
            raise UserError("--parser benepar: not installed; run: pip install 'fairseq-diverse[syntax]'") from None
        try:
            self.parser = benepar.Parser(model, language_code=language)
        except (LookupError, OSError, ValueError) as error:
            hint = f"get it with: python -c \"import benepar; benepar.download('{model}')\", or give a benepar folder"
            raise UserError(
                f"--model {model}: benepar cannot load it ({_first_line(error)}); {_or_folder(model, hint)}"
            ) from None
        self.sentence = benepar.InputSentence

    def parse(self, sentences: Sequence[list[str]]) -> list[str]:
        inputs = [
            self.sentence(
                words=words,
                space_after=[True] * len(words),
                escaped_words=[with_brackets_escaped(word) for word in words],
            )
            for words in sentences
        ]
        model = self.parser._parser  # its own batch call is faster than Parser.parse_sents, which knows no subbatches
        outputs = model.parse(inputs, return_compressed=True, subbatch_max_tokens=SUBBATCH_TOKENS)
        labels, tags = model.decoder.label_from_index, model.tag_from_index
        trees = (
            output.to_tree(one.pos(), labels, tags) for one, output in zip(inputs, outputs, strict=True)
        )  # fmt: skip
        return [" ".join(tree.pformat(margin=10**9).split()) + "\n" for tree in trees]


def load_parser(name: str, model: str, language: str) -> Parser:
    """The parser, in this process, with one thread."""
    import torch

    torch.set_num_threads(1)
    return Spacy(model) if name == "spacy" else Benepar(model, language)


def parse_safely(parser: Parser, sentences: Sequence[list[str]]) -> list[tuple[str | None, str]]:
    """Each sentence's tree, or None and why there is none; what fails is parsed again in halves, down to its cause."""
    if not sentences:
        return []
    try:
        return [(tree, "") for tree in parser.parse(sentences)]
    except Exception as error:  # a parser may raise anything for one sentence of many
        if len(sentences) == 1:
            return [(None, f"{type(error).__name__}: {_first_line(error)}")]
    half = len(sentences) // 2
    return parse_safely(parser, sentences[:half]) + parse_safely(parser, sentences[half:])


def _or_folder(model: str, hint: str) -> str:
    """What to do about a model that cannot be loaded."""
    return "the folder holds another parser's model, or a part of one" if Path(model).exists() else hint


def _first_line(error: Exception) -> str:
    return " ".join(str(error).strip().split("\n")[0].split())[:150] or "no message"
