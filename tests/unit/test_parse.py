"""Parsing keeps every sentence on its line, even if the parser fails."""

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import re
import signal
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement

from fairseq_diverse.cli import main
from fairseq_diverse.support import files, slurm
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.parallel import parallel_map
from fairseq_diverse.support.processes import locked
from fairseq_diverse.syntax import parse, parsers
from fairseq_diverse.syntax.parse import EMPTY, Job, parse_lines
from fairseq_diverse.syntax.trees import read_brackets, read_conllu
from tests.refusals import refusal, refused

ROOT = Path(__file__).parents[2]


class Fake:
    """Refuses more than ten words and the word "bad", and fails for whole batches, like real parsers."""

    def __init__(self, kind):
        self.kind, self.calls = kind, 0

    def parse(self, sentences):
        self.calls += 1
        for words in sentences:
            if "bad" in words or len(words) > 10:
                raise RuntimeError(f"cannot parse {len(words)} words\nand more")
        if self.kind == "constituency":
            return ["(S " + " ".join(f"(X {word})" for word in words) + ")\n" for words in sentences]
        return ["".join(f"{i}\t{a}\t_\t_\t_\t_\t{i - 1}\t_\t_\t_\n" for i, a in enumerate(w, 1)) for w in sentences]


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


@pytest.mark.parametrize("line", ["x " * 20_001, "a " + "x" * 1_001])
def test_very_long_lines_are_not_parsed(line):
    parser = Fake("constituency")
    assert parse_lines(parser, "constituency", ["a", line]) == [("(S (X a))\n", ""), ("\n", parse.ENDLESS)]
    assert parser.calls == 1


def parse_text(folder, content="a\n"):
    (folder / "text").write_text(content)
    how = {"kind": "constituency", "parser": "benepar", "model": "m", "language": "en"}
    parse.parse_file(folder / "text", folder / "out", how, 1, None, ())


def test_two_processes_do_not_write_the_same_trees(tmp_path):
    with locked(tmp_path / "out.parts"), pytest.raises(ValueError, match=r"is working on .*out\.parts"):
        parse_text(tmp_path)


def test_parts_of_another_job_are_refused(tmp_path):
    job = Job("dependency", "spacy", "m", "en", "digest", 0, 10)
    parse._take_over(tmp_path / "parts", job)
    parse._take_over(tmp_path / "parts", job)
    assert json.loads((tmp_path / "parts/job.json").read_text())["model"] == "m"
    other = Job("dependency", "spacy", "m", "en", "other", 0, 10)
    parse._take_over(tmp_path / "parts", other)  # nothing was parsed yet
    parse._take_over(tmp_path / "parts", job)
    (tmp_path / "parts/0000000000.json").write_text("[]")
    refused(r"parts: holds parts of another text, parser or shard;", parse._take_over, tmp_path / "parts", other)


def test_a_text_is_measured_as_if_it_were_in_memory(tmp_path):
    for lines in ([], ["a b"], ["", "ä", "c\u2028d", ""]):
        (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        expected = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        assert parse._measure(tmp_path / "text") == (len(lines), expected)
    (tmp_path / "text").write_bytes(b"a b\r\r\nc d\r\r\n")
    assert parse._measure(tmp_path / "text")[0] == 2
    (tmp_path / "text").write_bytes(b"a b\rc d\r")
    refused("text: its lines end with a carriage return alone", parse._measure, tmp_path / "text")


def test_finished_trees_of_another_text_or_parser_are_not_taken_for_those_asked_for(tmp_path):
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text("a b\n")
    asked = {"kind": "dependency", "parser": "spacy", "model": "/here/model", "language": "en", "grammar": "a"}
    for content in ({}, asked, asked | {"text": parse._measure(text)[1], "model": "/there/model"}):
        parse.record_path(out).write_text(json.dumps(content))
        parse.refuse_other(out, text, asked)
    other_shard = {"shard": {"text": "other", "lines": [0, 1]}}
    others = (
        (other_shard, "text"),
        ({"model": "/there/other"}, "of model other"),
        ({"grammar": "b"}, "of another grammar"),
    )
    for change, said in others:
        parse.record_path(out).write_text(json.dumps(asked | change))
        refused(rf"out: there already, but .*{said}; delete it to parse again", parse.refuse_other, out, text, asked)


def write_shards(tmp_path, **other):
    """Three shards of five lines, the third with a line that has no tree."""
    for number, (first, last) in enumerate([(0, 1), (1, 3), (3, 5)], 1):
        shard = parse.shard_path(tmp_path / "out", number, 3)
        shard.write_text("".join(f"(S {line})\n" for line in range(first, last)))
        record = {"kind": "constituency", "versions": {}, "shard": {"text": "hash", "lines": [first, last]}}
        parse.record_path(shard).write_text(json.dumps(record | (other if number == 2 else {})))
    (tmp_path / "out.3-of-3.unparsed").write_text("4\tempty line\n")


def test_shards_are_joined_when_all_are_there(tmp_path):
    out, second = tmp_path / "out", tmp_path / "out.2-of-3"
    write_shards(tmp_path)
    second.rename(tmp_path / "late")
    assert parse.join_shards(out, 3) == [second] and not out.exists()
    (tmp_path / "late").rename(second)
    with locked(tmp_path / "out.parts"), pytest.raises(ValueError, match=r"is working on .*out\.parts"):
        parse.join_shards(out, 3)
    assert parse.join_shards(out, 3) == [] == parse.join_shards(out, 3)
    assert out.read_text() == "".join(f"(S {line})\n" for line in range(5))
    assert json.loads((tmp_path / "out.json").read_text()) == {"kind": "constituency", "versions": {}, "text": "hash"}
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.json", "out.unparsed"}
    assert (tmp_path / "out.unparsed").read_text() == "4\tempty line\n"
    out.unlink()  # to parse again, now with a tree for every line
    write_shards(tmp_path)
    (tmp_path / "out.3-of-3.unparsed").unlink()
    assert parse.join_shards(out, 3) == [] and not (tmp_path / "out.unparsed").exists()


def parse_command(tmp_path, *flags):
    paths = ["--input", str(tmp_path / "text"), "--out", str(tmp_path / "out"), "--workers", "1"]
    return main(["parse", "--kind", "constituency", *paths, *flags])


@contextlib.contextmanager
def here(parsing, chunks, *how, **more):
    """In place of ``parallel_map``."""
    yield (parse_lines(Fake(parsing.job.kind), parsing.job.kind, lines) for lines in chunks)


def test_trees_of_parts_and_shards_are_in_the_order_of_the_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(parse, "parallel_map", here)
    monkeypatch.setattr(parse, "CHUNK", 2)
    (tmp_path / "text").write_text("\n".join([*LINES, "last"]))
    results = parse_lines(Fake("constituency"), "constituency", [*LINES, "last"])
    for shards in ([], *[["--shard", f"{number}/2", "--join"] for number in (1, 2)]):
        assert parse_command(tmp_path, *shards) == 0
        if shards[1:2] != ["1/2"]:
            assert (tmp_path / "out").read_text() == "".join(tree for tree, _ in results)
            listed = [line.split("\t")[0] for line in (tmp_path / "out.unparsed").read_text().splitlines()]
            assert listed == ["2", "3", "6", "7"]
            (tmp_path / "out").unlink()


def test_shards_of_different_texts_parsers_or_lines_are_not_joined(tmp_path):
    for other in ({"versions": {"spacy": "1"}}, {"shard": {"text": "hash", "lines": [2, 3]}}):
        write_shards(tmp_path, **other)
        with pytest.raises(UserError, match=r"out\.2-of-3: not of the text, parser and version of .*out\.1-of-3"):
            parse.join_shards(tmp_path / "out", 3)
        assert not (tmp_path / "out").exists() and (tmp_path / "out.1-of-3").exists()
    (tmp_path / "out.2-of-3.json").write_text('{"kind": "constituency", "versions": {}}')
    refused(r"out\.2-of-3\.json: not of a shard; delete .*out\.2-of-3 and", parse.join_shards, tmp_path / "out", 3)


def test_shards_that_another_process_joins_stop_no_other_split(tmp_path, monkeypatch, capsys):
    """Joined while this one waited for the lock; and being joined, while another split remains."""
    write_shards(tmp_path)
    locked = parse.locked

    @contextlib.contextmanager
    def joined_before(parts):
        monkeypatch.setattr(parse, "locked", locked)
        parse.join_shards(tmp_path / "out", 3)
        with locked(parts):
            yield

    monkeypatch.setattr(parse, "locked", joined_before)
    assert parse.join_shards(tmp_path / "out", 3) == [] and not (tmp_path / "out.parts").exists()
    (tmp_path / "out").unlink()
    write_shards(tmp_path)
    command = ["parse", "--kind", "constituency", "--input", f"{tmp_path}/{{split}}", "--out", f"{tmp_path}/{{split}}"]
    for number in (1, 2, 3):
        (tmp_path / f"other.{number}-of-3").touch()
    with locked(tmp_path / "out.parts"), locked(tmp_path / "other.parts"):
        assert main([*command, "--splits", "out,other", "--shard", "3/3", "--join"]) == 0
    said = capsys.readouterr().out
    assert all(f"{tmp_path}/{split}: process " in said for split in ("out", "other"))


@pytest.mark.parametrize(
    "flags", [["--slurm", "partition=a", "time=1"], ["--slu", "time=1"], ["--slurm=time=1"], ["--sl"]]
)
def test_a_job_is_not_queued_again_by_itself(flags, monkeypatch):
    """However --slurm is written, and wherever it stands."""
    queued = []
    monkeypatch.setattr(slurm, "submit", lambda jobs, *others: [queued.append(job.words) or "1" for job in jobs])
    command = ["parse", "--kind", "dependency", "--input", "a", "--out", "b"]
    assert main([*command, "--shards=2", *flags]) == 0
    assert queued == [[*command, "--shard", f"{number}/2", "--join"] for number in (1, 2)]
    assert main([command[0], *flags, *command[1:], "--shards", "1"]) == 0
    assert queued[2:] == [[*command, "--shard", "1/1", "--join"]]


def test_a_worker_that_replaces_another_takes_its_gpu():
    """Workers that end after every chunk."""
    gpus = multiprocessing.get_context("spawn").SimpleQueue()
    gpus.put("MIG-1")
    job = Job("constituency", "nosuch", "m", "en", "", 0, 2)
    with parallel_map(SeenGpu(job, gpus), [[], []], 1, renewed=1) as seen:
        assert list(seen) == ["MIG-1"] * 2


class SeenGpu(parse.Parsing):
    def __call__(self, lines):
        with contextlib.suppress(UserError):  # there is no such model
            super().__call__(lines)
        return os.environ["CUDA_VISIBLE_DEVICES"]


FLAGS = {
    "--device cuda": "--device cuda: torch sees no GPU here",
    "--join": "--join: give --shard I/N too",
    "--shards 2": "--shards 2: needs --slurm; without it, start each with --shard I/N --join",
    "--shards 0 --slurm": "--shards 0: at least 1 is needed",
    "--shard 1/2 --slurm": "--shard 1/2: with --slurm give --shards N",
    "--shard 3/2": "--shard 3/2: I/N with 1 <= I <= N",
    "--out all.{split}": "--input and --out: {split} must be in both or in neither",
    "--out .": "--out .: a folder; name a file",
    "--parser benepar": "--parser benepar: makes no dependency trees; take spacy",
    "--language fi": "--language fi: no default model of spacy",
    "--workers 0": "--workers 0: at least 1 is needed",
    "--model nosuch": r"--model nosuch: spaCy cannot load it \(.+\); get it with: python -m spacy download no",
    "--kind constituency --model nosuch": r"--model nosuch: benepar cannot load it \(.+\); get it with: python -c",
}


@pytest.mark.parametrize("flags", FLAGS)
def test_flags_that_do_not_fit(flags, tmp_path, monkeypatch, error_of):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    (tmp_path / "text").write_text("a b\n")
    paths = ["--input", f"{tmp_path}/text", "--out", f"{tmp_path}/out"]
    said = error_of("parse", "--kind", "dependency", *paths, *flags.split())
    assert re.match(f"fairseq-diverse parse: {FLAGS[flags]}", said) and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_default_models(tmp_path):
    (tmp_path / "text").touch()  # no lines, so no model is needed
    known = {"dependency en_US": "en_core_web_sm", "dependency de": "de_core_news_sm"}
    known |= {"constituency en": "benepar_en3", "constituency de": "benepar_de2"}
    for number, (kind, language, model) in enumerate((*asked.split(), model) for asked, model in known.items()):
        flags = ["--kind", kind, "--language", language, "--input", f"{tmp_path}/text", "--out", f"{tmp_path}/{number}"]
        assert main(["parse", *flags]) == 0
        assert json.loads((tmp_path / f"{number}.json").read_text())["model"] == model


def test_the_gpus_and_workers_asked_for_parse(tmp_path, monkeypatch):
    """GPUs have the names that the user gave."""
    given = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("fairseq_diverse.cli.parse.parse_file", lambda *job: given.append(job[3:]) or (0, []))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    command = ["parse", "--kind", "dependency", "--input", f"{tmp_path}/text", "--out", f"{tmp_path}/out"]
    assert main([*command, "--device", "cuda"]) == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    for flags in (["--device", "cuda", "--workers", "4"], ["--workers", "2"]):
        assert main([*command, *flags]) == 0
    assert given == [(2, None, ["0", "1"]), (4, None, ["3", "5"]), (2, None, [])]


@pytest.mark.parametrize(("name", "parser"), [("stanza", "Stanza"), ("spacy", "Spacy")])
@pytest.mark.parametrize("gpu", ["", "5"])
def test_a_worker_with_a_place_on_a_gpu_uses_it(name, parser, gpu, monkeypatch):
    given = []
    monkeypatch.setattr(parsers, parser, lambda *arguments: given.append(arguments) or Fake("dependency"))
    monkeypatch.setattr(parse, "Finalize", lambda *arguments, **more: None)
    for name_of_variable in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name_of_variable, "1")
    parsing = parse.Parsing(Job("dependency", name, "m", "en", "", 0, 1), SimpleNamespace(get=lambda: gpu, put=None))
    assert parsing(["a b"]) == parsing(["a b"])
    ((*_, used),) = given
    assert used == bool(gpu)


def test_spacy_without_a_gpu_says_what_to_install(monkeypatch):
    def require_gpu():
        raise ValueError("Cannot use GPU, CuPy is not installed")

    monkeypatch.setattr("spacy.require_gpu", require_gpu)
    with pytest.raises(UserError, match=r"^--device cuda: spaCy: Cannot use GPU.*; pip install 'spacy\[cuda12x\]'"):
        parsers.load_parser("dependency", "spacy", "en_core_web_sm", "en", gpu=True)


@pytest.mark.parametrize("name", ["spacy", "stanza"])
def test_columns_of_a_parser(name):
    words, heads = ["in", "it", "sat"], [1, 2, 2]
    labels = [("ADP", "IN", "case"), ("PRON", "PRP", "obl"), ("VERB", "VBD", "root")]
    universal, tags, relations = (list(column) for column in zip(*labels, strict=True))
    if name == "spacy":
        spacy = pytest.importorskip("spacy")
        labelled = {"heads": heads, "pos": universal, "tags": tags, "deps": [*relations[:2], "ROOT"]}
        doc = spacy.tokens.Doc(spacy.vocab.Vocab(), words, **labelled)
        rows = "".join(map(parsers._conllu_line, doc))
    else:
        of_words = [
            SimpleNamespace(id=n, upos=one, xpos=tag, head=head, deprel=relation)
            for n, ((one, tag, relation), head) in enumerate(zip(labels, (2, 3, 0), strict=True), 1)
        ]
        parser = parsers.Stanza.__new__(parsers.Stanza)
        parser.kind, parser.nlp = "dependency", lambda _: SimpleNamespace(sentences=[SimpleNamespace(words=of_words)])
        (rows,) = parser.parse([words])
    (sentence,) = read_conllu(Path("x"), rows.split("\n"))
    assert sentence[:4] == (words, heads, universal, relations)
    assert [row.split("\t")[4] for row in rows.splitlines()] == tags


def test_words_that_stanza_splits_are_not_parsed():
    parser = parsers.Stanza.__new__(parsers.Stanza)
    for kind in parsers.KINDS:
        parser.kind, parser.nlp = kind, lambda _: SimpleNamespace(sentences=[SimpleNamespace(words=["can", "not"])])
        assert parsers.parse_safely(parser, [["cannot"]]) == [(None, "ValueError: stanza split or joined words")]


@pytest.mark.parametrize(
    ("label", "children", "tree"),
    [("ROOT", ["(S (X a))"], "(S (X a))"), ("ROOT", ["(X a)", "(X b)"], None), ("S", ["(X a)"], None)],
)
def test_trees_of_stanza_are_without_its_root(label, children, tree):
    root = type("Root", (SimpleNamespace,), {"__str__": lambda self: "whole"})(label=label, children=children)
    parser = parsers.Stanza.__new__(parsers.Stanza)
    sentence = SimpleNamespace(words=["a"], constituency=root)
    parser.kind, parser.nlp = "constituency", lambda _: SimpleNamespace(sentences=[sentence])
    assert parser.parse([["a"]]) == [f"{tree or 'whole'}\n"]


def test_subwords_stand_between_the_special_tokens_of_their_tokenizer(tmp_path):
    """For benepar with transformers 5; with 4, as the method of a BERT that is gone there."""
    from tokenizers import Tokenizer, models, processors
    from transformers import BertTokenizerFast, PreTrainedTokenizerFast

    words = {"a": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[PAD]": 4, "[MASK]": 5, "</s>": 6}
    t5 = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    t5.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 6)])
    assert parsers.with_special_tokens(PreTrainedTokenizerFast(tokenizer_object=t5), [-100]) == [-100, 6]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    bert = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    assert parsers.with_special_tokens(bert, [-100, 9]) == [2, -100, 9, 3]
    if hasattr(bert, "build_inputs_with_special_tokens"):
        assert bert.build_inputs_with_special_tokens([-100, 9]) == [2, -100, 9, 3]


# --- models that are damaged or bring code ---


@pytest.mark.parametrize("version", ["1.10.1", "1.12.1", "1.14.0"])
def test_a_stanza_that_runs_code_of_models_is_refused_and_not_installed(version, monkeypatch, tmp_path):
    stanza = pytest.importorskip("stanza")
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["syntax"]
    allowed = next(one.specifier for one in map(Requirement, requirements) if one.name == "stanza")
    assert version not in allowed and parsers.SAFE_STANZA in allowed
    monkeypatch.setattr(stanza, "__version__", version)
    with pytest.raises(UserError, match=rf"^--parser stanza: version {version} may run code .*'stanza>=1\.15'$"):
        parsers.load_parser("dependency", "stanza", str(tmp_path), "en")


class RunsOnLoading:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def benepar_folder(folder, **config):
    """A model whose code and whose weights write the file ``ran``."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    (folder / "benepar_model.bin").write_bytes(pickle.dumps(RunsOnLoading(folder / "ran")))
    return folder


CALLS_CODE = {"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config"}}


@pytest.mark.parametrize("checked", [True, False])
def test_a_benepar_folder_never_runs_code_for_any_input(checked, tmp_path, monkeypatch):
    folder = benepar_folder(tmp_path / "m", **CALLS_CODE)
    if not checked:  # transformers itself does not ask either
        monkeypatch.setattr(parsers, "CODE", ())
    stdin = io.StringIO("y\n" * 9)
    monkeypatch.setattr(sys, "stdin", stdin)
    caught = refusal(parsers.load_parser, "constituency", "benepar", str(folder), "en", "--constituency-model")
    assert not (folder / "ran").exists() and stdin.tell() == 0
    assert caught.startswith(f"--constituency-model {folder}")
    assert ("auto_map asks for code from elsewhere, which is never run" in caught) == checked


@pytest.mark.parametrize("more", [{"deep": [{"auto_map": {}}]}, {"_attn_implementation": "someone/kernel"}])
def test_code_is_found_anywhere_in_a_configuration(more, tmp_path):
    folder = benepar_folder(tmp_path / "m", model_type="bert", benepar={})
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_type": "bert"} | more))
    said = r"tokenizer_config\.json: \w+ asks for code from elsewhere"
    refused(said, parsers.load_parser, "constituency", "benepar", str(folder), "en")


@pytest.mark.parametrize("content", [None, b"PK\x03\x04 cut"])
def test_damaged_weights_of_benepar_are_one_line_and_a_pickle_does_not_run(content, tmp_path):
    folder = benepar_folder(tmp_path / "m", model_type="bert", benepar={"hparams": {}})
    if content is not None:
        (folder / "benepar_model.bin").write_bytes(content)
    caught = refusal(parsers.load_parser, "constituency", "benepar", str(folder), "en")
    assert caught.startswith(f"--model {folder}: benepar cannot load it (")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[nlp]\nlang = 1\nlang = 2\n", "spaCy cannot load it .*; it holds another parser's model"),
        ('[nlp]\nlang = "en"\n[components]\n[components.x]\nmore = {"trust_remote_code": true}\n', "asks for code"),
    ],
)
def test_damaged_spacy_folders_are_one_line(config, message, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.cfg").write_text(config)
    (tmp_path / "m/meta.json").write_text("{}")
    with pytest.raises(UserError, match=f"^--model {tmp_path}/m.*{message}[^\n]*$"):
        parsers.load_parser("dependency", "spacy", str(tmp_path / "m"), "en")


@pytest.mark.parametrize("name", ["spacy", "benepar"])
def test_a_name_never_loads_a_package_or_folder_that_is_not_a_model(name, tmp_path, monkeypatch):
    package = benepar_folder(tmp_path / "some_model", model_type="bert")
    (package / "__init__.py").write_text("import some_model.evil\n")
    (tmp_path / "some_model-1.0.dist-info").mkdir()
    (tmp_path / "some_model-1.0.dist-info/METADATA").write_text("Name: some_model\nVersion: 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"^--model some_model: \w+ cannot load it \(LookupError: .*get it with"):
        parsers.load_parser("dependency", name, "some_model", "en")
    assert not (package / "ran").exists()


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "parser : not an object of parser, model, language"),
        ({"dependency": {"parser": "spacy", "model": 5, "language": "en"}}, "parser dependency: not an object"),
        ({"dependency": {"parser": "benepar", "model": "m", "language": "en"}}, "'benepar' makes no such trees"),
        ({"dependency": {"parser": "spacy", "model": "a/b", "language": "en"}}, "'a/b' is neither a name nor an abs"),
    ],
)
def test_a_record_names_parsers_by_name_or_absolute_path(found, message):
    refused(f"^x/preprocess.json: .*{message}", parsers.recorded_parsers, {"parsers": found}, "x/preprocess.json")


# --- stopped and damaged ---


@pytest.mark.parametrize("step", ["out.unparsed", "out.json", "out"])
@pytest.mark.parametrize("shards", [True, False])
def test_interrupted_at_any_file_the_trees_appear_last(shards, step, tmp_path, monkeypatch):
    """And shards stay until their join is complete."""
    monkeypatch.setattr(parse, "parallel_map", here)
    if shards:
        write_shards(tmp_path)
    real, before = parse.atomic_write, {path.name for path in tmp_path.iterdir()}

    def write():
        return parse.join_shards(tmp_path / "out", 3) if shards else parse_text(tmp_path, "a\n\n")

    @contextlib.contextmanager
    def stop(path, *mode):
        with real(path, *mode) as file:
            yield file
            if str(path) == str(tmp_path / step):
                raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        for module in (parse, files):
            patch.setattr(module, "atomic_write", stop)
        write()
    assert before <= {path.name for path in tmp_path.iterdir()} and not (tmp_path / "out").exists()
    write()
    assert {path.name for path in tmp_path.iterdir()} - {"text"} == {"out", "out.json", "out.unparsed"}
    if not shards:
        assert (tmp_path / "out").read_text() == "(S (X a))\n\n"
        assert (tmp_path / "out.unparsed").read_text() == "2\tempty line\n"


def test_a_process_that_dies_is_one_line():
    killed = parallel_map(signal.raise_signal, [signal.SIGKILL], 1, renewed=5)
    with pytest.raises(UserError, match=r"^a process died, out of memory\?; start again"), killed as results:
        list(results)


def test_a_job_that_parsed_nothing_leaves_nothing(monkeypatch, tmp_path):
    """As with a model that is not installed."""

    def failing(*_, **more):
        raise UserError("no such model")

    monkeypatch.setattr(parse, "parallel_map", failing)
    refused("no such model", parse_text, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize("name", ["job.json", "0000000000.json"])
def test_a_damaged_part_is_named(name, tmp_path):
    (tmp_path / "out.parts").mkdir()
    (tmp_path / "out.parts/0000000000.json").write_text("[]" if name == "job.json" else "[[")
    if name == "job.json":
        (tmp_path / "out.parts/job.json").write_text("{")
    refused(f"out.parts/{name}: damaged; delete it and start again", parse_text, tmp_path)
