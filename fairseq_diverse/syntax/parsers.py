"""One interface for all parsers: sentences as lists of words in, trees as text out.

A model folder is data: a folder that requests code of its own is refused. A model name is an installed package (spaCy)
or a downloaded model (benepar, stanza), never a folder in the current directory."""

import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from packaging.version import Version

from fairseq_diverse.support.errors import UserError, first_line
from fairseq_diverse.support.installed import install, needed
from fairseq_diverse.syntax.escapes import with_brackets_escaped
from fairseq_diverse.syntax.pcfg import Pcfg

KINDS = {"dependency": "spacy", "constituency": "benepar"}  # the parsers by default
PARSERS = {"dependency": ("spacy", "stanza"), "constituency": ("benepar", "stanza", "pcfg")}
MODELS = {
    **{("spacy", "en"): "en_core_web_sm", ("spacy", "de"): "de_core_news_sm"},
    **{("benepar", "en"): "benepar_en3", ("benepar", "de"): "benepar_de2"},
}  # of stanza: the package default, for every language
NAME = re.compile(r"\w[\w-]*", re.ASCII)
CODE = ("auto_map", "trust_remote_code")  # keys with which a model contains or allows code
SAFE_STANZA = "1.15"  # 1.12.1 unpickles vectors that are refused, 1.14 a lemmatizer's dictionary: both run code
SUBBATCH_TOKENS = 500  # of benepar: larger ones are slower on a CPU and need gigabytes for long sentences


class Parser(Protocol):
    """A loaded parser; words are never split or joined.

    Those below take a model, an installed one or a folder, and for errors the ``flag`` or file that named it. They
    raise ``UserError`` where parser, model or GPU is missing, damaged, or would run code of the model.
    """

    path: str  # where it was loaded from

    def parse(self, sentences: Sequence[list[str]]) -> list[str]:
        """One tree per sentence, in order; an exception means that all failed."""


class Spacy:
    """Dependencies, as blocks of CoNLL-U without comments; ``gpu``: on the first GPU that this process sees."""

    def __init__(self, model: str, flag: str, gpu: bool = False) -> None:
        spacy = needed("spacy", f"--parser spacy: not installed; run: {install('syntax')}")
        if gpu:
            try:
                spacy.require_gpu()
            except ValueError as error:  # without CuPy, or without a device
                hint = "pip install 'spacy[cuda12x]', or --device cpu"
                raise UserError(f"--device cuda: spaCy: {error}; {hint}") from None
        hint = f"get it with: python -m spacy download {model}, or give the folder of a spaCy model"
        with _loading("spaCy", model, flag, hint):
            source: str | Path = model
            if not NAME.fullmatch(model):
                source = Path(model)
                _refuse_code(spacy.util.load_config(source / "config.cfg"), f"{flag} {source / 'config.cfg'}")
            elif not entry_points(group="spacy_models", name=model):  # spaCy would import any package of this name
                raise LookupError("no such model is installed")
            self.nlp = spacy.load(source, exclude=["ner", "lemmatizer", "textcat"])
        if "parser" not in self.nlp.pipe_names:
            raise UserError(f"{flag} {model}: has no dependency parser, only {', '.join(self.nlp.pipe_names)}")
        self.path = str(self.nlp.path)

    def parse(self, sentences: Sequence[list[str]]) -> list[str]:
        from spacy.tokens import Doc

        starts: list[list[Any]] = [[i == 0 for i in range(len(words))] for words in sentences]  # one sentence a line
        docs = (Doc(self.nlp.vocab, words, sent_starts=of) for words, of in zip(sentences, starts, strict=True))
        return ["".join(map(_conllu_line, doc)) for doc in self.nlp.pipe(docs, batch_size=256)]


def _conllu_line(token: Any) -> str:
    head = 0 if token.head.i == token.i else token.head.i + 1
    return _row(token.i + 1, token.text, token.pos_, token.tag_, head, token.dep_ if head else "root")


def _row(number: int, word: str, universal: str | None, tag: str | None, head: int, relation: str) -> str:
    return f"{number}\t{word}\t_\t{universal or '_'}\t{tag or '_'}\t_\t{head}\t{relation or '_'}\t_\t_\n"


class Stanza:
    """Dependencies or constituents (``kind``) by a package in stanza's own folder, such as default, or by a folder with
    stanza's resources.json."""

    def __init__(self, model: str, language: str, flag: str, kind: str, gpu: bool = False) -> None:
        _refuse_code_of_transformers()
        stanza = needed("stanza", f"--parser stanza: not installed; run: {install('syntax')}")
        if Version(stanza.__version__) < Version(SAFE_STANZA):
            danger = f"version {stanza.__version__} may run code from a model's folder"
            raise UserError(f"--parser stanza: {danger}; run: pip install 'stanza>={SAFE_STANZA}'")
        from stanza.resources.common import DEFAULT_MODEL_DIR

        name = NAME.fullmatch(model)
        self.kind, self.path = kind, DEFAULT_MODEL_DIR if name else model
        steps = {"dependency": "tokenize,pos,lemma,depparse", "constituency": "tokenize,pos,constituency"}[kind]
        options: dict[str, Any] = {"tokenize_pretokenized": True, "download_method": None, "verbose": False}
        hint = f"get it with: python -c \"import stanza; stanza.download('{language}', package='{model}')\""
        with _loading("stanza", model, flag, f"{hint}, or give the folder of stanza's resources"):
            package = model if name else "default"
            self.nlp = stanza.Pipeline(language, self.path, package, steps, use_gpu=gpu, **options)
        if steps.rpartition(",")[2] not in self.nlp.processors:
            processors = ", ".join(self.nlp.processors)
            raise UserError(f"{flag} {model}: has no {kind} parser of {language}, only {processors}")

    def parse(self, sentences: Sequence[list[str]]) -> list[str]:
        parsed = self.nlp([list(words) for words in sentences]).sentences
        if [len(sentence.words) for sentence in parsed] != [*map(len, sentences)]:
            raise ValueError("stanza split or joined words")
        if self.kind == "constituency":  # without the ROOT (benepar's keep TOP: layers, not relations, are one higher)
            roots = [sentence.constituency for sentence in parsed]
            return [f"{r.children[0] if r.label == 'ROOT' and len(r.children) == 1 else r}\n" for r in roots]
        trees = []
        for sentence, texts in zip(parsed, sentences, strict=True):
            words = zip(sentence.words, texts, strict=True)
            trees.append("".join(_row(w.id, text, w.upos, w.xpos, w.head, w.deprel) for w, text in words))
        return trees


class Benepar:
    """Constituents, as one PTB tree per line; on a GPU where torch sees one."""

    def __init__(self, model: str, language: str, flag: str) -> None:
        _refuse_code_of_transformers()
        warnings.filterwarnings("ignore", message=".*arg_constraints.*")
        missing = f"--parser benepar: not installed; run: {install('syntax-benepar')}"
        benepar, nltk = (needed(package, missing) for package in ("benepar", "nltk"))
        _give_back_special_tokens()
        hint = f"get it with: python -c \"import benepar; benepar.download('{model}')\", or give a benepar folder"
        with _loading("benepar", model, flag, hint):
            self.path = nltk.data.find(f"models/{model}").path if NAME.fullmatch(model) else model
            for path in sorted(Path(self.path).glob("*config*.json")):
                _refuse_code(json.loads(path.read_text(encoding="utf-8")), f"{flag} {path}")
            self.parser = benepar.Parser(self.path, language_code=language)
        self.sentence = benepar.InputSentence

    def parse(self, sentences: Sequence[list[str]]) -> list[str]:
        inputs = []
        for words in sentences:
            escaped = [*map(with_brackets_escaped, words)]
            inputs.append(self.sentence(words=words, space_after=[True] * len(words), escaped_words=escaped))
        model = self.parser._parser  # its batch call is faster than Parser.parse_sents, which has no subbatches
        outputs = model.parse(inputs, return_compressed=True, subbatch_max_tokens=SUBBATCH_TOKENS)
        labels, tags = model.decoder.label_from_index, model.tag_from_index
        trees = (output.to_tree(sentence.pos(), labels, tags) for sentence, output in zip(inputs, outputs, strict=True))
        return [" ".join(tree.pformat(margin=10**9).split()) + "\n" for tree in trees]


def load_parser(kind: str, name: str, model: str, language: str, flag: str = "--model", gpu: bool = False) -> Parser:
    """The parser of one kind of tree, in this process, with one thread."""
    if name == "pcfg":
        with _loading("pcfg", model, flag, "make it with: fairseq-diverse parse --train-pcfg"):
            return Pcfg(model)
    import torch

    torch.set_num_threads(1)
    if name == "stanza":
        return Stanza(model, language, flag, kind, gpu)
    return Spacy(model, flag, gpu) if name == "spacy" else Benepar(model, language, flag)


def parser_of(kind: str, model: str | None) -> str:
    """The parser of a model: stanza where the folder has stanza's resources.json, pcfg where it is a file, else the
    kind's usual one."""
    if kind == "constituency" and model and Path(model).is_file():
        return "pcfg"
    return "stanza" if model and (Path(model) / "resources.json").is_file() else KINDS[kind]


def located(model: str) -> str:
    """A model given by the user: the absolute path of a folder, or else the name."""
    return str(Path(model).resolve()) if Path(model).exists() else model


def recorded_parsers(record: dict[str, Any], where: str) -> dict[str, dict[str, str]]:
    """The parsers in a record, by kind: parser, model, language. Raises ``UserError``: the record is damaged, or has a
    relative folder."""
    parsers = record.get("parsers", {})
    for kind, how in parsers.items() if isinstance(parsers, dict) else [("", parsers)]:
        keys = ("parser", "model", "language")
        if not isinstance(how, dict) or not all(isinstance(how.get(key), str) for key in keys):
            raise UserError(f"{where}: parser {kind}: not an object of {', '.join(keys)}; parse again, or remove it")
        if how["parser"] not in PARSERS.get(kind, ()):
            raise UserError(f"{where}: parser {kind}: {how['parser']!r} makes no such trees")
        if not Path(how["model"]).is_absolute() and not NAME.fullmatch(how["model"]):
            raise UserError(f"{where}: parser {kind}: {how['model']!r} is neither a name nor an absolute path")
    return parsers


@contextmanager
def _loading(program: str, model: str, flag: str, hint: str) -> Iterator[None]:
    """Turn any error of a missing or damaged model into one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        wrong = "it holds another parser's model, or a part of one"
        todo = hint if NAME.fullmatch(model) else wrong if Path(model).exists() else "no such file or folder"
        raise UserError(f"{flag} {model}: {program} cannot load it ({first_line(error)}); {todo}") from None


def _give_back_special_tokens() -> None:
    """Give the tokenizers of transformers 5 the one method of transformers 4 that benepar calls."""
    from transformers import PreTrainedTokenizerFast

    if not hasattr(PreTrainedTokenizerFast, "build_inputs_with_special_tokens"):
        PreTrainedTokenizerFast.build_inputs_with_special_tokens = with_special_tokens  # type: ignore


def with_special_tokens(tokenizer: Any, tokens: list[int]) -> list[int]:
    """Subwords between the special tokens that a tokenizer adds."""
    inside, whole = (tokenizer("a", add_special_tokens=added)["input_ids"] for added in (False, True))
    before = next(start for start in range(len(whole)) if whole[start : start + len(inside)] == inside)
    return [*whole[:before], *tokens, *whole[before + len(inside) :]]


def _refuse_code_of_transformers() -> None:
    """No model from the network; and transformers refuses a model's own code, where it otherwise asks."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with suppress(ImportError):
        from transformers import dynamic_module_utils

        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0


def _refuse_code(config: Any, where: str) -> None:
    """Check that no part of a model's configuration requests code or kernels from the network."""
    todo = [config]
    while todo:
        value = todo.pop()
        for key, entry in value.items() if isinstance(value, dict) else ():
            if key in CODE or ("attn_implementation" in key and "/" in str(entry)):
                asks = "asks for code from elsewhere, which is never run"
                raise UserError(f"{where}: {key} {asks}; take another model")
        if isinstance(value, dict | list):
            todo += value.values() if isinstance(value, dict) else value


def parse_safely(parser: Parser, sentences: Sequence[list[str]]) -> list[tuple[str | None, str]]:
    """The tree of each sentence, or None and the reason; a batch that fails is parsed again in halves."""
    if not sentences:
        return []
    try:
        return [(tree, "") for tree in parser.parse(sentences)]
    except Exception as error:  # a parser may raise anything for one sentence of many
        if len(sentences) == 1:
            return [(None, first_line(error))]
    half = len(sentences) // 2
    return parse_safely(parser, sentences[:half]) + parse_safely(parser, sentences[half:])
