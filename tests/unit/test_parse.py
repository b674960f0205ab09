"""Parsing keeps every sentence on its line, whatever the parser does to it."""

import json

import pytest

from fairseq_diverse.errors import UserError
from fairseq_diverse.processes import locked
from fairseq_diverse.syntax import parse
from fairseq_diverse.syntax.parse import EMPTY, Job, parse_lines
from fairseq_diverse.syntax.trees import read_brackets, read_conllu


class Fake:
    """Takes at most ten words and no "bad" one, and fails whole batches as real parsers do."""

    def __init__(self, kind):
        self.kind, self.calls = kind, 0

    def parse(self, sentences):
        self.calls += 1
        for words in sentences:
            if "bad" in words or len(words) > 10:
                raise RuntimeError(f"cannot parse {len(words)} words\nand more")
        if self.kind == "constituency":
            return ["(S " + " ".join(f"(X {word})" for word in words) + ")\n" for words in sentences]
        return [
            "".join(f"{i}\t{word}\t_\t_\t_\t_\t{i - 1}\t_\t_\t_\n" for i, word in enumerate(words, 1))
            for words in sentences
        ]


LINES = ["a &quot; b", "", "bad day", "c", "d @-@ e f", "x " * 11, "   ", "g"]


@pytest.mark.parametrize("kind", ["dependency", "constituency"])
def test_every_sentence_keeps_its_line(kind, tmp_path):
    parser = Fake(kind)
    results = parse_lines(parser, kind, LINES)
    reasons = [reason for _, reason in results]
    assert [bool(reason) for reason in reasons] == [False, True, True, False, False, True, True, False]
    assert reasons[1] == EMPTY and reasons[2] == "RuntimeError: cannot parse 2 words"
    (tmp_path / "out").write_text("".join(tree for tree, _ in results))
    if kind == "dependency":
        sentences = list(read_conllu(tmp_path / "out"))
        assert [s.words for s in sentences] == [
            ["a", '"', "b"], [], ["bad", "day"], ["c"], ["d", "-", "e", "f"], ["x"] * 11, [], ["g"]
        ]  # fmt: skip
        assert [s.heads is None for s in sentences] == [bool(reason) for reason in reasons]
        assert sentences[0].heads == [0, 0, 1]
    else:
        trees = list(read_brackets(tmp_path / "out"))
        assert [tree and tree.leaves() for tree in trees] == [
            ["a", '"', "b"], None, None, ["c"], ["d", "-", "e", "f"], None, None, ["g"]
        ]  # fmt: skip


def test_a_failure_costs_its_batch_a_few_calls_not_one_a_sentence():
    parser = Fake("constituency")
    results = parse_lines(parser, "constituency", ["a b"] * 500 + ["bad"] + ["a b"] * 523)
    assert sum(bool(reason) for _, reason in results) == 1 and parser.calls <= 25


def test_two_processes_do_not_write_the_same_trees(tmp_path):
    (tmp_path / "text").write_text("a\n")
    job = (tmp_path / "text", tmp_path / "out", "dependency", "spacy", "none", "en", 1, (1, 1))
    with locked(tmp_path / "out.parts"), pytest.raises(ValueError, match=r"is working on .*out\.parts"):
        parse.parse_file(*job)


def test_parts_of_another_job_are_refused(tmp_path):
    job = Job("dependency", "spacy", "m", "en", "digest", 0, 10)
    parse._take_over(tmp_path / "parts", job)
    parse._take_over(tmp_path / "parts", job)
    assert json.loads((tmp_path / "parts/job.json").read_text())["model"] == "m"
    other = Job("dependency", "spacy", "m", "en", "other", 0, 10)
    parse._take_over(tmp_path / "parts", other)  # nothing was parsed yet
    parse._take_over(tmp_path / "parts", job)
    (tmp_path / "parts/0000000000.json").write_text("[]")
    with pytest.raises(UserError, match=r"parts: holds parts of another text, parser or shard; delete it"):
        parse._take_over(tmp_path / "parts", other)
