"""WordPiece equals that of transformers; damaged vocabularies are named."""

import random
from itertools import islice

import pytest

from fairseq_diverse.preparation.encoding import of_wordpiece
from fairseq_diverse.preparation.subwords import Subwords
from fairseq_diverse.preparation.wordpiece import SPECIAL, read_vocabulary, symbols
from fairseq_diverse.support.files import iterate_lines
from tests.integration.commands import shared_data
from tests.refusals import refused

TEXT = [
    "Ünïcode wörds aren't  rare,\tnaïve 北京 [MASK] x", "unaffable\u00adwords \u2028 and ÉTÉ", "", "a" * 101,
    "<s> [SEP] </s>"
]  # fmt: skip


def vocabulary(folder, lines, lowercase):
    """Learned by the library of transformers."""
    from tokenizers import BertWordPieceTokenizer

    made = BertWordPieceTokenizer(lowercase=lowercase)
    made.train_from_iterator(lines, vocab_size=600, show_progress=False)
    made.save_model(str(folder))
    return folder / "vocab.txt"


@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_subwords_are_those_of_transformers(tmp_path, lowercase):
    from transformers import BertTokenizer

    lines = [*islice(iterate_lines(shared_data("glue") / "CoLA/train.tsv"), 400), *TEXT]
    path = vocabulary(tmp_path, lines[:300], lowercase)
    ours, theirs = Subwords("wordpiece", path), BertTokenizer(str(path), do_lower_case=lowercase)
    for line in lines:
        assert ours.segment(line).split() == [SPECIAL.get(piece, piece) for piece in theirs.tokenize(line)], line
    assert ours.segment("Dogs") == ours.segment("dogs") or not lowercase
    words = ours.segment("She walks.")
    assert ours.join(words) == ("she walks ." if lowercase else "She walks .")
    assert [len(pieces) for pieces in ours.words(["a", "##b", "##c", ".", "d"])] == [3, 1, 1]


@pytest.mark.parametrize(("more", "pieces"), [("<S>", "dog"), ("Dog", "Dog")])
def test_symbols_do_not_make_a_vocabulary_cased(tmp_path, more, pieces):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "dog", "[unused1]", more]))
    assert Subwords("wordpiece", tmp_path / "vocab.txt").segment("Dog") == pieces


def test_the_dictionary_has_every_subword_once(tmp_path):
    path = vocabulary(tmp_path, ["some words", "and others"], lowercase=True)
    known = read_vocabulary(path)
    made = symbols(random.Random(0).sample(known, len(known)))
    assert made[:4] == ["<s>", "<pad>", "</s>", "<unk>"] and made[-1] == "<mask>" and len({*made}) == len(known)
    assert {*made} == {SPECIAL.get(subword, subword) for subword in known}


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([*SPECIAL, "a", "a"], "vocab.txt, line 7: 'a' is there already; the vocabulary of a BERT has"),
        ([*SPECIAL, "", "a"], "vocab.txt, line 6: empty; the vocabulary"),
        ([*SPECIAL, "<s>"], "vocab.txt, line 6: '<s>' is there already"),
        (["a", "b"], r"vocab.txt: lacks \[CLS\], \[PAD\], \[SEP\], \[UNK\], \[MASK\]; not the vocabulary of a BERT"),
    ],
)
def test_a_damaged_vocabulary_is_named(tmp_path, lines, problem):
    (tmp_path / "vocab.txt").write_text("\n".join(lines))
    refused(problem, of_wordpiece, tmp_path)


def test_a_missing_vocabulary_or_library_is_named(tmp_path, monkeypatch):
    refused(r"vocab\.txt: cannot be read \(No such file or directory\); the vocabulary", of_wordpiece, tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff")
    refused(r"vocab\.txt: not UTF-8", of_wordpiece, tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"WordPiece needs tokenizers; install it: pip install .*\[bert\]"):
        Subwords("wordpiece", tmp_path / "vocab.txt")
