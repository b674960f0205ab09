"""Trees of binarized data: projection to subwords, alignment, refusals."""

import errno
import json
import shutil

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_diverse.data import trees as binary
from fairseq_diverse.data.lengths import PhraseLayers, phrase_layers
from fairseq_diverse.data.live_trees import LiveTrees
from fairseq_diverse.data.trees import PairsWithTrees, SyntaxDataset, available_trees, binarize, project, words_of
from fairseq_diverse.support import files as support_files
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.processes import locked
from fairseq_diverse.syntax.escapes import comparable, with_brackets_escaped, without_moses
from fairseq_diverse.syntax.makers import copy_for, other_grammar, recorded_makers
from tests.refusals import refused

LINES = ["the l@@ ittle dog", "", "it runs", "&apos;s ( x@@ -@@ y )", "two roots"]
CONLLU = [
    [("the", 3), ("little", 3), ("dog", 0)], [], [("it", 2), ("runs", 0)], [("'s", 0), ("(", 3), ("x-y", 1), (")", 3)],
    [("two", 0), ("roots", 0)]
]  # fmt: skip
PTB = [
    "(S (NP (DT the) (JJ little) (NN dog)))", "", "(S (NP (PRP it)) (VP (VBZ runs)))",
    "(S (X 's) (X -LRB-) (X x-y) (X -RRB-))", "(S (X two) (X roots))"
]  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """The prefix of a binarized source, its text, CoNLL-U and PTB."""
    text, dependency, constituency = (tmp_path / name for name in ("bpe.en", "x.conllu", "x.ptb"))
    text.write_text("".join(f"{line}\n" for line in LINES))
    constituency.write_text("".join(f"{line}\n" for line in PTB))
    blocks = [
        f"# sent_id = {n}\n"
        + "".join(f"{i}\t{form}\t_\t_\t_\t_\t{head}\t_\t_\t_\n" for i, (form, head) in enumerate(words, 1))
        for n, words in enumerate(CONLLU, 1)
    ]
    dependency.write_text("\n".join(blocks) + "\n")
    prefix = tmp_path / "train.en-de.en"
    write_source(prefix, [len(line.split()) + 1 for line in LINES])
    return prefix, text, dependency, constituency


def write_source(prefix, lengths):
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for length in lengths:
        builder.add_item(torch.tensor([*range(4, 3 + length), 2]))
    builder.finalize(f"{prefix}.idx")


def test_the_mean_of_the_largest_phrase_layers(files, tmp_path):
    """2, none, 2, 1, 1, and once more in a second shard; sentences without a tree do not count."""
    prefix, text, dependency, constituency = files
    assert phrase_layers(str(tmp_path)) is None
    binarize(prefix, text, dependency, None, "subword-nmt")
    assert phrase_layers(str(tmp_path)) is None
    binarize(prefix, text, dependency, constituency, "subword-nmt")
    assert phrase_layers(str(tmp_path), "en", "de") == (4, 1.5)
    for ending in ("bin", "idx", "syntax.bin", "syntax.idx", "syntax.json"):
        shutil.copy(f"{prefix}.{ending}", f"{tmp_path}/train1.en-de.en.{ending}")
    assert phrase_layers(str(tmp_path)) == (8, 1.5)
    assert [PhraseLayers(1, mean).limit for mean in (11.0, 11.13, 13.0)] == [5, 6, 6]  # 11.13: that of the paper


@pytest.mark.parametrize(
    ("pieces", "subwords", "words", "counts"),
    [
        ("a b@@ c@@ d e", "subword-nmt", ["a", "bcd", "e"], [1, 3, 1]),
        ("a b@@", "subword-nmt", ["a", "b"], [1, 1]),
        ("▁a ▁b c ▁ d ▁e", "sentencepiece", ["a", "bc", "d", "e"], [1, 2, 2, 1]),
        ("a ▁b", "sentencepiece", ["a", "b"], [1, 1]),
        ("▁a ▁b c", "t5", ["a", "bc"], [1, 2]),
        ("▁a ▁ ▁b", "sentencepiece", ["a", "b"], [1, 2]),  # two spaces
        ("a@@ b", "none", ["a@@", "b"], [1, 1]),
        ("", "subword-nmt", [], []),
    ],
)
def test_words_of(pieces, subwords, words, counts):
    assert words_of(pieces.split(), subwords) == (words, counts)


ESCAPES = {
    "-LRB-": "(", "a(b": "a(b", "''": '"', "&apos;s": "'s", "&#91;": "[", "@-@": "-", "``": '"', "`": "'", "ﬁ": "fi",
    "a&b": "a&b", "1\\/2\\*": "1/2*", "&amp;lt;": "<", "&amp;amp;#91;": "[", "&nbsp;": "&nbsp;", "&#32;": "&#32;"
}  # fmt: skip


@pytest.mark.parametrize(("word", "expected"), ESCAPES.items())
def test_escapes(word, expected):
    assert comparable(word) == expected
    assert comparable(with_brackets_escaped(without_moses(word))) == expected


def test_projection(files):
    prefix, text, dependency, constituency = files
    counts = binarize(prefix, text, dependency, constituency, "subword-nmt")
    assert counts == (5, {"dependency": [2, 5], "constituency": [2]})
    trees = SyntaxDataset(str(prefix), ("dependency", "constituency"))
    # word, head, start, end, layer; the last row is </s>
    assert trees[0].tolist() == [[0, 2, 0, 3, 2], [1, 2, 0, 3, 2], [1, 2, 0, 3, 2], [2, 2, 0, 3, 2], [3, 3, 3, 4, 0]]
    assert trees[1].tolist() == [[0, 0, 0, 1, 0]]
    assert trees[2].tolist() == [[0, 1, 0, 2, 2], [1, 1, 0, 2, 2], [2, 2, 2, 3, 0]]
    assert trees[4].tolist() == [[0, 0, 0, 1, 0]] * 3
    # a model that needs no dependencies uses the constituents of the sentence with two roots
    assert SyntaxDataset(str(prefix), ("constituency",))[4][:, 2:].tolist() == [[0, 2, 1], [0, 2, 1], [2, 3, 0]]


@pytest.mark.parametrize(
    ("text", "heads"), [("I@@ ch bin im Park", [3, 3, 3, 3]), ("I@@ ch bin in dem Park", [4, 4, 4, 4, 4])]
)
def test_multiword_tokens_are_words_where_the_text_has_them(text, heads, files):
    prefix, path, dependency, _ = files
    rows = ["1 Ich 5", "2 bin 5", "3-4 im _", "3 in 5", "4 dem 5", "5 Park 0"]
    dependency.write_text("".join("{}\t{}\t_\t_\t_\t_\t{}\t_\t_\t_\n".format(*row.split()) for row in rows))
    path.write_text(f"{text}\n")
    write_source(prefix, [len(text.split()) + 1])
    binarize(prefix, path, dependency, None, "subword-nmt")
    (graph,) = SyntaxDataset(str(prefix), ("dependency",))
    assert graph[1:-1, 1].tolist() == heads
    path.write_text(f"{text.replace('im', 'am').replace('dem', 'der')}\n")
    refused(r"x.conllu: sentence 1 is not line 1 of", binarize, prefix, path, dependency, None, "subword-nmt")


def test_project_keeps_every_relation_of_a_word():
    rows = torch.tensor([[2, 1, 0, 2, 3], [1, 1, 0, 2, 4]])
    assert project(rows, ("dependency",))[:, :2].tolist() == [[0, 1], [0, 1], [1, 1], [2, 2]]


def test_what_is_missing_is_named(files):
    prefix, text, dependency, _ = files
    refused("syntax.json: missing, and this model needs dependency trees", SyntaxDataset, str(prefix), ("dependency",))
    binarize(prefix, text, dependency, None, "subword-nmt")
    refused("needs dependency and constituency", SyntaxDataset, str(prefix), ("dependency", "constituency"))
    write_source(prefix, [3] * 5)
    refused("belongs to another source than", SyntaxDataset, str(prefix), ("dependency",))
    missing = "--source-lang de --target-lang en --dependency FILES"
    refused(missing, SyntaxDataset, str(prefix.with_suffix(".de")), ("dependency",))


def replaced(old, new):
    return lambda path: path.write_text(path.read_text().replace(old, new))


def written(lines):
    return lambda path: path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (1, replaced("runs", "ran"), r"x.conllu: sentence 3 is not line 3 of .*: '... ran', '... runs'"),
        (2, replaced("(JJ little)", ""), r"x.ptb: sentence 1 is not line 1 of"),
        (2, written(PTB[:3]), r"x.ptb: 3 sentences, but .*bpe.en has more lines"),
        (2, written([*PTB, "(X y)"]), r"x.ptb: more than the 5 sentences of"),
        (0, written(LINES[:4]), r"x.conllu: more than the 4 sentences"),
        (0, replaced("l@@ ittle", "li@@ tt@@ le"), r"bpe.en:1: 5 subwords, but .*train.en-de.en.bin has 4"),
    ],
)
def test_files_that_do_not_match_are_refused_and_nothing_is_written(files, file, change, message, tmp_path):
    prefix, *paths = files
    change(paths[file])
    before = sorted(tmp_path.iterdir())
    refused(message, binarize, prefix, *paths, "subword-nmt")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("sentences", "message"), [(6, "bpe.en: 5 lines, but .* has 6 sentences"), (4, "no more lines")]
)
def test_text_and_trees_of_another_number_of_lines_than_the_data_are_refused(files, sentences, message):
    prefix, *paths = files
    write_source(prefix, [len(line.split()) + 1 for line in [*LINES, "one more"][:sentences]])
    refused(message, binarize, prefix, *paths, "subword-nmt")


def test_trees_from_files_are_counted_over_all_calls(files):
    _, _, dependency, _ = files
    live = LiveTrees(("dependency",), {}, {"dependency": dependency}, "subword-nmt")
    trees, unparsed = live(LINES[:2], LINES[:2])
    assert [len(tree) for tree in trees] == [5, 1] and unparsed == [1]
    refused("sentence 4 is not that line of the input", live, LINES[2:4], [LINES[2], "other"])


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(6))
def test_killed_anywhere_it_leaves_the_old_set_the_new_one_or_one_that_is_refused(files, step, monkeypatch):
    prefix, text, dependency, constituency = files
    binarize(prefix, text, dependency, None, "subword-nmt")
    old = [one.tolist() for one in SyntaxDataset(str(prefix), ("dependency",))]
    steps = []

    def killable(real):
        def call(*args, **options):
            if len(steps) == step:
                raise Killed
            steps.append(real)
            return real(*args, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(binary.os, "replace", killable(binary.os.replace))
        patch.setattr(binary.Path, "unlink", killable(binary.Path.unlink))
        patch.setattr(binary.shutil, "rmtree", lambda path: None)  # nothing is cleaned up after a kill
        if step < 5:
            with pytest.raises(Killed):
                binarize(prefix, text, None, constituency, "subword-nmt")
        else:
            binarize(prefix, text, None, constituency, "subword-nmt")
    support_files._given.clear()  # as after the process ended
    found = {}
    for kind in ("dependency", "constituency"):
        try:
            found[kind] = [one.tolist() for one in SyntaxDataset(str(prefix), (kind,))]
        except UserError as error:
            assert str(error).startswith(f"{prefix}.syntax.json: ")
    assert found in ({"dependency": old}, {}) if step < 4 else list(found) == ["constituency"]
    binarize(prefix, text, None, constituency, "subword-nmt")
    assert SyntaxDataset(str(prefix), ("constituency",))[0][:, 2:].tolist() == [[0, 3, 2]] * 4 + [[3, 4, 0]]
    assert sorted(path.name for path in prefix.parent.iterdir()) == sorted(
        ["bpe.en", "x.conllu", "x.ptb", *(f"{prefix.name}.{x}" for x in ("bin", "idx"))]
        + [f"{prefix.name}.syntax.{x}" for x in ("bin", "idx", "json")]
    )


def test_a_full_disk_leaves_the_old_trees(files, monkeypatch):
    prefix, text, dependency, constituency = files
    binarize(prefix, text, dependency, None, "subword-nmt")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MMapIndexedDatasetBuilder, "finalize", full)
    with pytest.raises(OSError, match=rf"{prefix}\.syntax: not written: .* No space left on device$"):
        binarize(prefix, text, None, constituency, "subword-nmt")
    assert len(SyntaxDataset(str(prefix), ("dependency",))) == 5


def test_two_processes_do_not_write_the_same_trees_at_once(files):
    prefix, text, dependency, _ = files
    with locked(prefix.with_name(f".{prefix.name}.syntax.part")), pytest.raises(ValueError, match="is working on"):
        binarize(prefix, text, dependency, None, "subword-nmt")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"kinds": 5}', '{"kinds": ["dependency"]}', "\xff", "[" * 9999])
def test_a_damaged_description_is_named(files, content):
    prefix, text, dependency, _ = files
    binarize(prefix, text, dependency, None, "subword-nmt")
    path = prefix.with_name(f"{prefix.name}.syntax.json")
    path.write_text(content, encoding="latin-1")
    for call in (lambda: SyntaxDataset(str(prefix), ("dependency",)), lambda: available_trees(prefix)):
        refused(f"^{path}: damaged, or not written by fairseq-diverse binarize-syntax; run it again$", call)


@pytest.mark.parametrize("ending", ["bin", "idx"])
@pytest.mark.parametrize("change", [lambda c: c[:-4], lambda c: b"", lambda c: b"?" * len(c), lambda c: c[:-1] + b"?"])
def test_damaged_trees_are_named(files, ending, change):
    prefix, text, dependency, _ = files
    binarize(prefix, text, dependency, None, "subword-nmt")
    path = prefix.with_name(f"{prefix.name}.syntax.{ending}")
    path.write_bytes(change(path.read_bytes()))
    refused(f"^{path}: ", SyntaxDataset, str(prefix), ("dependency",))


def test_the_record_lists_the_kinds_of_trees_and_in_the_first_versions_no_digest(files):
    prefix, text, dependency, _ = files
    binarize(prefix, text, dependency, None, "subword-nmt")
    path = prefix.with_name(f"{prefix.name}.syntax.json")
    record = json.loads(path.read_text())
    assert record["kinds"] == ["dependency"] and record["sentences"] == 5
    assert record["unparsed"] == {"dependency": [2, 5]}
    path.write_text(json.dumps({key: value for key, value in record.items() if key != "digest"}))
    assert len(SyntaxDataset(str(prefix), ("dependency",))) == 5


@pytest.mark.parametrize("left", [True, False])
def test_batches_carry_the_trees_of_their_sentences(files, left):
    prefix, text, dependency, constituency = files
    binarize(prefix, text, dependency, constituency, "subword-nmt")
    words = Dictionary()
    for word in range(20):
        words.add_symbol(f"w{word}")
    sentences = [torch.tensor([*range(4, 4 + len(line.split())), 2]) for line in LINES]
    sizes = np.array([len(s) for s in sentences])
    pairs = LanguagePairDataset(sentences, sizes, words, sentences, sizes, words, left_pad_source=left)
    trees = SyntaxDataset(str(prefix), ("dependency", "constituency"))
    dataset = PairsWithTrees(pairs, trees)
    batch = dataset.collater([dataset[i] for i in (2, 4, 0, 3)])
    assert batch["id"].tolist() != [2, 4, 0, 3] and dataset.collater([]) == {}
    for row, index in enumerate(batch["id"].tolist()):
        real = batch["net_input"]["src_tokens"][row] != words.pad()
        assert torch.equal(batch["net_input"]["source_trees"][row][real], trees[index])
        assert (batch["net_input"]["source_trees"][row][~real] == torch.tensor([-1, -1, 0, 0, 0])).all()


def test_the_parsers_of_older_sets_are_in_the_record_of_their_data(tmp_path):
    path = tmp_path / "train.en-de.en.syntax.json"
    path.write_text(json.dumps({"kinds": ["dependency", "constituency"]}))
    assert recorded_makers(path) == {"dependency": "", "constituency": ""}
    (tmp_path / "preprocess.json").write_text(json.dumps({"parsers": {"dependency": {"parser": "stanza"}}}))
    assert recorded_makers(path) == {"dependency": "stanza", "constituency": ""}


@pytest.mark.parametrize(
    ("dependency", "constituency", "name"),
    [("stanza", "stanza", "wmt-stanza"), ("stanza", "pcfg", "wmt-stanza-pcfg"), ("spacy", "pcfg", "wmt-pcfg")],
)
def test_a_copy_has_the_name_of_each_other_parser_once(dependency, constituency, name, tmp_path):
    makers = {"dependency": dependency, "constituency": constituency}
    assert copy_for(tmp_path / "wmt", makers) == tmp_path / name


def test_a_grammar_that_was_not_recorded_is_not_another(tmp_path, monkeypatch):
    (tmp_path / "grammar").write_text("{}")
    monkeypatch.setenv("PCFG_MODEL", str(tmp_path / "grammar"))
    for recorded, said in (({}, False), ({"grammar": "of another"}, True)):
        record = {"parsers": {"constituency": {"parser": "pcfg", **recorded}}}
        (tmp_path / "train.en-de.en.syntax.json").write_text(json.dumps(record))
        assert ("made by another grammar" in other_grammar(tmp_path, "en")) == said
