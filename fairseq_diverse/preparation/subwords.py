"""One interface for subword segmentation with subword-nmt, sentencepiece, WordPiece and GPT-2's byte-level BPE."""

import io
import itertools
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import IO, Any

from fairseq_diverse.host.data import gpt2_encoder
from fairseq_diverse.preparation.wordpiece import SPECIAL, tokenizer
from fairseq_diverse.support.files import iterate_lines

SPACE_MARK = "\u2581"  # sentencepiece's symbol for a space
UNKNOWN_MARK = "\u2585"  # sentencepiece skips training lines that have it
TASK_CHARACTERS = string.ascii_lowercase + string.digits + "_.:"  # of tasks of GLUE as text, whatever the text has
BPE_MODEL: dict[str, Any] = {"model_type": "bpe", "character_coverage": 1.0, "normalization_rule_name": "identity"}
BPE_MODEL |= {"num_threads": 1, "minloglevel": 2}
T5_MODEL = BPE_MODEL | {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
T5_MODEL |= {"required_chars": TASK_CHARACTERS}
LONGEST = 4192  # bytes; sentencepiece skips longer training lines by default
OF_PIECES = ("sentencepiece", "t5")  # kinds of a model of sentencepiece
UNUSED = 100_000  # rows of embeddings that no T5 has
SENTINELS = 100  # words at the end of T5's dictionaries, for spans that are left out
CACHED = 1_000_000  # words that subword-nmt has segmented, kept at most: 0.7 GB


class Subwords:
    """Tokens to subwords and back. A file that is damaged or of another kind is a ``ValueError``.

    Args:
        kind: "subword-nmt", "sentencepiece", "t5" (its unigram model), "wordpiece" or "gpt2" (subwords are numbers).
        model: the file of merges or the model; of WordPiece vocab.txt, of GPT-2 encoder.json.
        vocabulary: allowed subwords (subword-nmt); others are split further. None = all. Of GPT-2 vocab.bpe.
        threshold: smallest count in ``vocabulary`` of an allowed subword.
    """

    def __init__(self, kind: str, model: Path, vocabulary: Path | None = None, threshold: int = 0):
        self.kind = kind
        if kind in OF_PIECES:
            from sentencepiece import SentencePieceProcessor

            with readable(model, "model of sentencepiece"):
                self.pieces = SentencePieceProcessor(model_proto=model.read_bytes())
        elif kind == "wordpiece":
            self.wordpiece = tokenizer(model)
        elif kind == "gpt2":
            with readable(model, f"encoder.json of GPT-2, or {vocabulary} is not its vocab.bpe"):
                self.gpt2 = gpt2_encoder(model, Path(vocabulary or ""))
                units = {*self.gpt2.byte_encoder.values(), *map("".join, self.gpt2.bpe_ranks)}
                if not units <= set(self.gpt2.encoder) or any(type(n) is not int for n in self.gpt2.encoder.values()):
                    raise ValueError("subwords without a number")
        else:
            from subword_nmt.apply_bpe import BPE, read_vocabulary

            allowed = None
            if vocabulary:
                with readable(vocabulary, "vocabulary of subword-nmt"), _text(vocabulary) as f:
                    allowed = read_vocabulary(f, threshold)
            with readable(model, "file of merges of subword-nmt"), _text(model) as f:
                self.bpe = BPE(f, vocab=allowed)
                if self.bpe.version not in ((0, 1), (0, 2)):
                    raise ValueError("unknown version")

    def segment(self, line: str) -> str:
        if self.kind in OF_PIECES:
            return " ".join(self.pieces.encode(line, out_type=str))
        if self.kind == "wordpiece":
            subwords = self.wordpiece.encode(line, add_special_tokens=False).tokens
            return " ".join(SPECIAL.get(subword, subword) for subword in subwords)
        if self.kind == "gpt2":
            return " ".join(map(str, self.gpt2.encode(line)))
        if len(self.bpe.cache) > CACHED:
            self.bpe.cache.clear()
        return self.bpe.segment(line)

    def join(self, line: str) -> str:
        """Subwords to words; a line without marks (``--remove-bpe``) does not change."""
        if self.kind in OF_PIECES:
            return line.replace(" ", "").replace(SPACE_MARK, " ").strip() if SPACE_MARK in line else line
        if self.kind == "wordpiece":
            return line.replace(" ##", "")
        if self.kind == "gpt2":
            return self.gpt2.decode([int(word) if word.isdecimal() else word for word in line.split()])
        return re.sub("@@( |$)", "", line)

    def words(self, subwords: Sequence[str]) -> list[list[str]]:
        """The subwords of each word, in their order.

        A word is what was one token before segmentation; with sentencepiece and GPT-2 it ends at a space of the text,
        with WordPiece at a space or a punctuation mark.
        """
        words: list[list[str]] = []
        for subword in subwords:
            if words and self._continues(words[-1][-1], subword):
                words[-1].append(subword)
            else:
                words.append([subword])
        return words

    def _continues(self, previous: str, subword: str) -> bool:
        if self.kind in OF_PIECES:
            return not subword.startswith(SPACE_MARK)
        if self.kind == "wordpiece":
            return subword.startswith("##")
        if self.kind == "gpt2":
            return not self.join(subword).startswith(" ")
        return previous.endswith("@@")


def _text(path: Path) -> IO[str]:
    return open(path, encoding="utf-8", newline="\n")


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Turn any error of a library about a damaged file into one line. Raises ``ValueError``: names the file."""
    try:
        with redirect_stderr(io.StringIO()):  # subword-nmt prints the reason and exits
            yield
    except (ValueError, RuntimeError, AttributeError, TypeError, LookupError, SystemExit):
        raise ValueError(f"{path}: damaged, or not a {what}") from None


def learn(kind: str, paths: Sequence[Path], size: int, model: Path) -> int:
    """Learn merges (subword-nmt: ``size`` of them), or a model of sentencepiece (vocabulary of ``size``): of BPE, or of
    T5 a unigram model with its symbols <pad>, </s> and <unk>. Returns the number of merges, or the size.

    The model depends only on the lines of the files and the size. subword-nmt stops early if no pair occurs twice.
    Raises ``ValueError``: the text is too small for the size (sentencepiece) or has no word of two letters."""
    lines, again = (itertools.chain.from_iterable(map(iterate_lines, paths)) for _ in range(2))
    if kind in OF_PIECES:
        import sentencepiece

        longest = max((len(line.encode()) for line in again), default=0)
        limit = {"max_sentence_length": longest} if longest > LONGEST else {}  # the model records it
        options = (BPE_MODEL if kind == "sentencepiece" else T5_MODEL) | limit
        sentences, written = (line.replace(UNKNOWN_MARK, " ") for line in lines), io.BytesIO()
        train = sentencepiece.SentencePieceTrainer.train
        try:
            train(sentence_iterator=sentences, model_writer=written, vocab_size=size, **options)
        except (RuntimeError, OSError) as error:
            raise ValueError(f"sentencepiece cannot learn a vocabulary of {size}: {error}") from None
        model.write_bytes(written.getvalue())
        return size
    from subword_nmt.learn_bpe import learn_bpe

    words = Counter(word for line in lines for word in line.split(" ") if word)
    if all(len(word) == 1 for word in words):
        raise ValueError("BPE: the training text has no word of two letters or more")
    dictionary = [f"{word} {count}" for word, count in words.items()]
    with open(model, "w", encoding="utf-8", newline="\n") as f:
        learn_bpe(dictionary, f, size, is_dict=True)
    return sum(1 for _ in iterate_lines(model)) - 1  # the first has the version


def t5_words(pieces: Any, size: int | None = None) -> list[str]:
    """The symbols of a dictionary of T5: fairseq's four, the pieces, words for unused rows, and the sentinels.

    ``pieces``: a ``SentencePieceProcessor``; ``size``: number of symbols; by default the next multiple of 128, as T5's
    32,128 for 32,000 pieces. Raises ``ValueError``: the first pieces are not <pad>, </s> and <unk>, or the size is too
    small for the symbols, or much too large."""
    known = pieces.get_piece_size()
    if (first := [pieces.id_to_piece(number) for number in range(min(3, known))]) != ["<pad>", "</s>", "<unk>"]:
        raise ValueError(f"not a model of T5: its first pieces are {', '.join(first)}, not <pad>, </s>, <unk>")
    minimum = known + 1 + SENTINELS  # with <s>
    size = -(-minimum // 128) * 128 if size is None else size
    if not minimum <= size < minimum + UNUSED:
        raise ValueError(f"{size} rows of embeddings; {known:,} pieces, {SENTINELS} sentinels and <s> need {minimum:,}")
    unused = (f"madeupword{number:04d}" for number in range(size - minimum))
    sentinels = (f"<extra_id_{number}>" for number in reversed(range(SENTINELS)))
    pieces = map(pieces.id_to_piece, range(3, known))
    return ["<s>", "<pad>", "</s>", "<unk>", *pieces, *unused, *sentinels]


def count_subwords(lines: Iterable[str], vocabulary: Path) -> None:
    """Write the counts of subwords, most frequent first, like ``subword-nmt get-vocab``."""
    counts: Counter[str] = Counter(subword for line in lines for subword in line.split(" ") if subword)
    with open(vocabulary, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(f"{subword} {count}\n" for subword, count in counts.most_common())
