"""Trees from files to training and translation, through the command line."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from argparse import Namespace

import pytest
import torch
from fairseq.tasks.translation import TranslationConfig
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from fairseq_diverse.analysis import attention_maps, head_map
from fairseq_diverse.analysis.head_map import draw_head_map as draw
from fairseq_diverse.analysis.heads import inspect_heads
from fairseq_diverse.cli import main
from fairseq_diverse.cli.plot import sentence_of_split
from fairseq_diverse.data import live_trees
from fairseq_diverse.data.trees import SyntaxDataset
from fairseq_diverse.experiments.runs.find import find_runs, preparations
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.host.programs import fill_architecture
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.models.loading import load_model
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.pipeline import read_record
from fairseq_diverse.tasks.translation_with_syntax import TranslationWithSyntax
from fairseq_diverse.testing.models import dictionary
from tests.integration.commands import TINY, cli, run
from tests.integration.test_parse import MODELS, needs_models
from tests.integration.training import figures, refused, train, train_resumed

TASK = "--task translation_with_syntax"
SYSTEM = f"{TASK} --syntax phrase --enliven enliven --enliven-gate 0.5 --localness-on encoder:1 --relative-on encoder "
SYSTEM += "--max-tokens 400"
DECODING = "--cpu --beam 2 --max-len-b 12 --num-workers 0 --required-batch-size-multiple 1"


def command(*arguments):
    return cli(*arguments).stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The embedded corpus with its gold trees."""
    folder = tmp_path_factory.mktemp("syntax")
    said = command("toy", "--out", folder / "raw", "--sentences", 120, "--valid", 20, "--test", 12, "--word-by-word")
    assert re.search(r"^word by word: BLEU \d+\.\d, chrF \d+\.\d \(sacreBLEU", said, re.MULTILINE)
    command("prepare", "toy", "--raw", folder / "raw", "--out", folder / "data")
    trees = ("--dependency", f"{folder}/raw/{{split}}.en.conllu", "--constituency", f"{folder}/raw/{{split}}.en.ptb")
    said = command("binarize-syntax", "--data", folder / "data", *trees)
    assert "test: 12 sentences, 0 without a usable constituency tree" in said
    return folder / "data"


def not_trained(data, folder, system=SYSTEM):
    """Why."""
    return refused("train", data, *TINY.split(), *system.split(), "--max-update", 1, "--save-dir", folder)


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    logged = figures(train(data, folder, SYSTEM, 6))
    shares = logged["redundant_1"]
    assert len(shares) == 6 and all(0 <= share <= 1 for share in shares) and len(set(shares)) > 1
    assert 0 <= logged["valid_redundant_1"][0] <= 1
    return folder / "checkpoint_last.pt"


def translate(data, checkpoint, *flags):
    log = run("generate", data, "--path", checkpoint, *DECODING.split(), *TASK.split(), *flags)
    return {int(n): (score, text) for n, score, text in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", log.stdout, re.MULTILINE)}


def test_every_sentence_has_its_own_trees_in_every_batch(data, checkpoint):
    alone = translate(data, checkpoint, "--batch-size", 1)
    together = translate(data, checkpoint, "--batch-size", 12)
    assert len(alone) == 12 and {n: text for n, (_, text) in alone.items()} == {n: t for n, (_, t) in together.items()}
    for n, (score, _) in alone.items():
        assert float(score) == pytest.approx(float(together[n][0]), abs=1e-3)
    workers = translate(data, checkpoint, "--batch-size", 5, "--num-workers", 2)
    assert {n: text for n, (_, text) in workers.items()} == {n: text for n, (_, text) in alone.items()}


def test_an_ensemble_with_fairseqs_transformer(data, checkpoint, tmp_path):
    """fairseq's model takes no trees; the ensemble of a model with itself translates as it does."""
    train(data, tmp_path / "plain", "--task translation --arch transformer_tiny", updates=6)
    plain = tmp_path / "plain/checkpoint_last.pt"
    twice, once = translate(data, f"{plain}:{plain}"), translate(data, plain)
    assert {n: text for n, (_, text) in twice.items()} == {n: text for n, (_, text) in once.items()}
    for number, (score, _) in twice.items():  # log of the mean of two equal probabilities
        assert float(score) == pytest.approx(float(once[number][0]), abs=1e-5)
    both, alone = (translate(data, path) for path in (f"{checkpoint}:{plain}", checkpoint))
    assert len(both) == len(alone) == 12 and both != alone
    trees = ("--dependency", data.parent / "raw/test.en.conllu", "--constituency", data.parent / "raw/test.en.ptb")
    common = ("translate", "--data", data, "--cpu", "--input", data.parent / "raw/test.en", *trees)
    first, second = (command(*common, "--checkpoint", p) for p in (f"{checkpoint}:{plain}", f"{plain}:{checkpoint}"))
    assert first == second and first.count("\n") == 12


def test_an_exported_transformer_goes_into_such_an_ensemble():
    """Its settings are a dictionary."""
    args, words = Namespace(arch="transformer_tiny"), dictionary()
    fill_architecture(args)
    task = TranslationWithSyntax(TranslationConfig(), words, words)
    model = task.build_model(OmegaConf.create({"_name": "transformer", **vars(args)}), from_checkpoint=True)
    assert type(model) is DiverseTransformerModel


def test_killed_and_resumed_gives_the_same_losses(data, tmp_path):
    train_resumed(data, tmp_path, f"{SYSTEM} --save-interval-updates 2 --update-freq 2", 2, 4)


def test_sharded_data(data, tmp_path):
    """Two folders, one epoch each, with different sentences: trees of the wrong folder would not fit."""
    other = shutil.copytree(data, tmp_path / "other")
    for path in other.glob("valid.en-de.*"):
        shutil.copy(path, other / path.name.replace("valid", "train"))
    log = train(f"{data}:{other}", tmp_path / "model", f"{SYSTEM} --max-epoch 3", 1000)
    assert f"{other} train en-de 20 examples" in log and "creating new batches for epoch 3" in log


def test_combined_shards(data, tmp_path):
    """``train`` and ``train1`` of one folder: fairseq trains on both at once, --upsample-primary repeats the first."""
    folder, raw = shutil.copytree(data, tmp_path / "data"), shutil.copytree(data.parent / "raw", tmp_path / "raw")
    for path in [*folder.glob("valid.en-de.*.???"), folder / "text/bpe.valid.en", *raw.glob("valid.en.*")]:
        if ".syntax." not in path.name:
            shutil.copy(path, path.with_name(path.name.replace("valid", "train1")))
    missing = f"error: {folder}/train1.en-de.en.syntax.json: missing, and this model needs dependency and constituency "
    todo = f"trees: fairseq-diverse binarize-syntax --data {folder} --splits train1 --dependency FILES "
    assert f"\n{missing}{todo}--constituency FILES\n" in not_trained(folder, tmp_path / "model")
    trees = ("--dependency", f"{raw}/{{split}}.en.conllu", "--constituency", f"{raw}/{{split}}.en.ptb")
    command("binarize-syntax", "--data", folder, "--splits", "train1", *trees)
    assert "train1 en-de 20 examples" in train(folder, tmp_path / "model", SYSTEM, 1)

    pair = {"source_lang": "en", "target_lang": "de", "dataset_impl": "mmap", "required_seq_len_multiple": 1}
    task = TranslationWithSyntax.setup_task(TranslationConfig(data=str(folder), upsample_primary=2, **pair))
    task.trees = ("dependency", "constituency")

    def examples(split, **options):
        task.load_dataset(split, **options)
        pairs = task.dataset(split)
        inputs = (pairs.collater([pairs[n]])["net_input"] for n in range(len(pairs)))
        return [(one["src_tokens"].tolist(), one["source_trees"].tolist()) for one in inputs]

    assert examples("train", combine=True) == examples("train") * 2 + examples("train1")


def test_long_sentences_are_skipped_with_their_trees(data, tmp_path):
    system = f"{SYSTEM} --max-source-positions 24 --skip-invalid-size-inputs-valid-test"
    assert re.search(r"\d+ samples have invalid sizes and will be skipped", train(data, tmp_path, system))


def test_a_model_without_syntax_ignores_trees_also_missing_ones(data, tmp_path, error_of):
    """``translate`` reports that it ignores given trees."""
    bare = shutil.copytree(data, tmp_path / "bare", ignore=shutil.ignore_patterns("*.syntax.*"))
    train(bare, tmp_path / "model", TASK, 1)
    common = ["translate", "--checkpoint", tmp_path / "model/checkpoint_last.pt", "--data", bare, "--cpu"]
    for flag, kind in (("--dependency", "dependency"), ("--constituency-model", "constituency")):
        said = f"fairseq-diverse translate: {flag} given: this model uses no {kind} trees; leave it out\n"
        assert error_of(*common, flag, "given") == said


def test_missing_files_and_impossible_flags_are_one_line(data, checkpoint, tmp_path):
    bare = shutil.copytree(data, tmp_path / "bare", ignore=shutil.ignore_patterns("*.syntax.*"))
    for folder, system, message in (
        (bare, SYSTEM, "valid.en-de.en.syntax.json: missing, and this model needs dependency and constituency trees"),
        (data, f"{SYSTEM} --truncate-source", "--truncate-source: trees cannot be truncated"),
        (data, SYSTEM.replace(TASK, ""), "this model needs dependency and constituency trees of its source sentences"),
    ):
        assert re.search(f"^error: .*{message}", not_trained(folder, tmp_path / "model", system), re.MULTILINE)
    arguments = (data, "--path", checkpoint, "--cpu", *TASK.split(), "--input", data / "text/bpe.test.en")
    assert "error: fairseq-interactive has no trees for this model; use" in refused("interactive", *arguments)


def test_binarize_syntax_records_what_made_the_trees(data, tmp_path, capsys):
    """What ``parse`` wrote beside its files, or --parser; new text is parsed only by what ``parse`` knows."""
    folder, raw = shutil.copytree(data, tmp_path / "data"), shutil.copytree(data.parent / "raw", tmp_path / "raw")
    files = ["--dependency", f"{raw}/{{split}}.en.conllu", "--constituency", f"{raw}/{{split}}.en.ptb"]

    def binarize(*flags):
        code = main(["binarize-syntax", "--data", str(folder), "--splits", "test", *files, *flags])
        return code, json.loads((folder / "test.en-de.en.syntax.json").read_text())["parsers"]

    how = {"parser": "spacy", "model": "en_ewt_small", "language": "en", "versions": {"spacy": "3.8"}}
    assert binarize() == (0, {"dependency": {"parser": ""}, "constituency": {"parser": ""}})
    assert (folder / "test.en-de.en.conllu").read_bytes() == (raw / "test.en.conllu").read_bytes()  # for report --by
    assert binarize("--parser", "gold") == (0, {"dependency": {"parser": "gold"}, "constituency": {"parser": "gold"}})
    (raw / "test.en.conllu.json").write_text(json.dumps({"kind": "dependency"} | how))
    for flag in ("pcfg", "dependency=spacy,constituency=pcfg"):
        code, made = binarize("--parser", flag)
        assert code == 0 and made == {"dependency": {"kind": "dependency"} | how, "constituency": {"parser": "pcfg"}}
    assert read_record(folder)["parsers"] == {"dependency": {"kind": "dependency"} | how}
    (raw / "test.en.conllu.json").unlink()
    assert binarize("--parser", "constituency=pcfg")[1]["dependency"] == {"parser": ""}
    assert read_record(folder)["parsers"] == {}
    for kind, parser in (("conllu", "spacy"), ("ptb", "benepar")):
        (raw / f"test.en.{kind}.json").write_text(json.dumps(how | {"parser": parser}))
    capsys.readouterr()
    for flag, message in (
        ("pcfg", "--parser pcfg: by what `parse` recorded, pcfg made no trees of test"),
        ("tags=pcfg", "--parser 'tags=pcfg': NAME or KIND=NAME expected, of the kinds dependency, constituency"),
        ("a b", "--parser 'a b': NAME or KIND=NAME expected, of the kinds dependency, constituency"),
    ):
        assert binarize("--parser", flag)[0] == 2
        assert capsys.readouterr().err == f"fairseq-diverse binarize-syntax: {message}\n"


def test_a_copy_of_the_data_replaces_nothing_else(data, tmp_path, error_of):
    """Neither files of another data set, nor where the trees are missing or a pipe."""
    copy, trees = tmp_path / "copy", f"{data.parent}/raw/{{split}}.en.conllu"
    os.mkfifo(tmp_path / "pipe")
    common = ("binarize-syntax", "--data", data, "--copy", copy, "--splits", "test", "--dependency")
    assert "raw/test.typo: cannot be read (No such file" in error_of(*common, data.parent / "raw/{split}.typo")
    assert f"{tmp_path}/pipe: a pipe or device, which" in error_of(*common, tmp_path / "pipe")
    assert error_of(*common, trees, "--copy", data / "copy").endswith("copy: is in --data; name another folder\n")
    assert not copy.exists() and not (data / "copy").exists()
    copy.mkdir()
    (copy / "dict.en.txt").write_text("another")
    assert error_of(*common, trees).endswith(
        f"--copy {copy}: its dict.en.txt is not that of --data; name another folder\n"
    )
    assert [path.read_text() for path in copy.iterdir()] == ["another"]
    shutil.copy(data / "dict.en.txt", copy)  # what an interrupted call leaves
    assert "test: 12 sentences" in command(*common, trees) and read_record(copy)["hash"] == read_record(data)["hash"]


def test_trees_of_the_other_direction(data, tmp_path, error_of):
    """Of data that were prepared en-de, the trees of the German side, for a model that translates from German."""
    folder, pair = shutil.copytree(data, tmp_path / "data"), ["--source-lang", "de", "--target-lang", "en"]
    for split in ("train", "valid", "test"):
        lines = (folder / f"text/tok.{split}.de").read_text().splitlines()
        rows = "{}\t{}\t_\t_\t_\t_\t{}\t_\t_\t_\n".format
        blocks = ["".join(rows(n, word, n - 1) for n, word in enumerate(line.split(), 1)) for line in lines]
        (tmp_path / f"{split}.conllu").write_text("\n".join([*blocks, ""]))
    (tmp_path / "test.conllu.json").write_text(json.dumps({"parser": "spacy", "model": "m", "language": "de"}))
    system = f"{TASK} --syntax dependency {' '.join(pair)}"
    said = not_trained(folder, tmp_path / "model", system)
    todo = f"fairseq-diverse binarize-syntax --data {folder} {' '.join(pair)} --dependency FILES"
    assert f"{folder}/valid.en-de.de.syntax.json: missing, and this model needs" in said and f"trees: {todo}\n" in said
    command(*todo.replace("FILES", f"{tmp_path}/{{split}}.conllu").split()[1:])
    assert (folder / "test.en-de.de.conllu").read_bytes() == (tmp_path / "test.conllu").read_bytes()
    assert read_record(folder)["parsers"] == read_record(data)["parsers"]  # of English
    train(folder, tmp_path / "model", system, 1)
    flags = ("--checkpoint", tmp_path / "model/checkpoint_last.pt", "--data", folder, "--json")
    assert "syntactic attention" in json.loads(command("heads", *flags))
    line = (folder / "text/test.de").read_text().splitlines()[2]
    given = ("--path", flags[1], "--data", folder, "--layer", 1, "--sentence", 3, "--out", tmp_path / "maps.png")
    shown = command("plot", "attention", *given, "--component", "encoder").splitlines()[0]
    assert shown == f"{Preprocessing.load(folder).encode(line, 'target')} </s>"
    text = ("--input", folder / "text/test.de", "--cpu")
    said = error_of("translate", *flags[:4], *text)
    assert "this model needs dependency trees: give --dependency FILE or --dependency-model" in said
    trees = ("--dependency", tmp_path / "test.conllu")
    assert command("translate", *flags[:4], *text, *trees).count("\n") == 12


def test_binarize_syntax_reads_the_text_that_it_is_given(data, tmp_path, error_of):
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "text").rename(folder / "moved")
    common = ("binarize-syntax", "--data", folder, "--splits", "test")
    trees = ("--dependency", data.parent / "raw/{split}.en.conllu", "--text", folder / "moved/bpe.{split}.en")
    assert "test: 12 sentences" in command(*common, *trees)
    for flag, value, message in (
        ("--subwords", "none", "test.en.conllu: sentence 1 is not line 1 of "),
        ("--source-lang", "fr", f"{folder}/test.fr-de.fr"),
        ("--target-lang", "fr", f"{folder}/test.en-fr.en"),
    ):
        assert message in error_of(*common, *trees, flag, value)
    assert "moved/bpe.valid.en" in error_of(*common, *trees[:-1], folder / "moved/bpe.valid.en")


def test_the_trees_of_a_sentence_are_its_own(data):
    """Of ``plot attention --sentence``."""
    for split, number in (("test", 5), ("valid", 1), ("test", 1)):
        everything = SyntaxDataset(str(data / f"{split}.en-de.en"), ("dependency",))
        line, trees = sentence_of_split(data, split, Preprocessing.load(data), number, ("dependency",))
        assert line == (data / f"text/{split}.en").read_text().splitlines()[number - 1]
        assert torch.equal(trees, everything[number - 1])
    assert not torch.equal(everything[0], everything[4])


def test_translate_equals_generate(data, checkpoint, tmp_path):
    """Raw text and trees from files; a buffer smaller than the text, a batch larger than the buffer."""
    expected = translate(data, checkpoint, "--remove-bpe")
    raw = data.parent / "raw"
    trees = ("--dependency", raw / "test.en.conllu", "--constituency", raw / "test.en.ptb")
    common = ("translate", "--checkpoint", checkpoint, "--data", data, "--beam", 2, "--max-len-b", 12, "--cpu", *trees)
    common = (*common, "--input", raw / "test.en")
    said = command(*common, "--scores", "--buffer-size", 5)
    rows = [line.split("\t") for line in said.splitlines()]
    assert [int(number) for number, *_ in rows] == list(range(1, 13))
    for number, (_, score, text) in enumerate(rows):
        assert float(score) == pytest.approx(float(expected[number][0]), abs=1e-3)
        assert text.replace(" ", "") == expected[number][1].replace(" ", "")
    assert not command(*common, "--nbest", 2, "--out", tmp_path / "out")
    lines = (tmp_path / "out").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(n) for n in range(1, 13) for _ in range(2)]
    for row, line in zip(rows, lines[::2], strict=True):
        number, score, text = line.split("\t")
        assert [number, text] == row[::2] and float(score) == pytest.approx(float(row[1]), abs=1e-3)
    said = command(*common, "--scores", "--fp16")
    half, whole = ([float(line.split("\t")[1]) for line in text] for text in (said.splitlines(), lines[::2]))
    assert half == pytest.approx(whole, abs=0.02) and half != whole
    settings = ("--lenpen", 2, "--max-len-a", 0.1, "--max-len-b", 1)
    expected = translate(data, checkpoint, "--remove-bpe", *settings)
    for number, line in enumerate(command(*common, "--scores", *settings).splitlines()):
        assert float(line.split("\t")[1]) == pytest.approx(float(expected[number][0]), abs=1e-3)
        assert line.split("\t")[2].replace(" ", "") == expected[number][1].replace(" ", "")


def test_errors_are_one_line(data, checkpoint, tmp_path, error_of):
    (tmp_path / "short.ptb").write_text("(S (X a))\n")
    raw = data.parent / "raw"
    binarize = f"binarize-syntax --data {data}"
    translate = f"translate --checkpoint {checkpoint} --data {data} --input {raw}/test.en --cpu"
    given = f"{translate} --dependency {raw}/test.en.conllu"
    for words, message in (
        (f"{binarize} --dependency x.conllu", "--dependency x.conllu: must contain {split}"),
        (f"{binarize} --dependency {tmp_path}/{{split}}", f"{tmp_path}/train: cannot be read"),
        (translate, "this model needs dependency and constituency trees: give --dependency FILE or --dependency-model"),
        (f"{translate} --nbest 9", "--nbest 9: at most the beam, 5"),
        (f"{given} --constituency {tmp_path}/short.ptb", "short.ptb: 1 sentences, but"),
        (f"{given} --constituency {raw}/valid.en.ptb", "is not that line of the input"),
        (f"{given} --dependency-model a", "--dependency and --dependency-model: give one, the trees or"),
        (f"heads --checkpoint {tmp_path} --data {data} --sentences 0", "heads: --sentences 0: at least 1 is needed"),
        ("parse --kind dependency --input x{split} --out y{split} --splits ,", "parse: --splits ',': names none"),
    ):
        said = error_of(*words.split())
        assert said.startswith(f"fairseq-diverse {words.split()[0]}: ") and message in said


def test_very_long_lines_are_skipped_and_keep_their_place(data, checkpoint, tmp_path, capsys, error_of):
    """Of a million characters or words, before they are tokenized; their trees are skipped."""
    raw = data.parent / "raw"
    first = (raw / "test.en").read_text().splitlines()[0]
    (tmp_path / "text").write_text(f"{'a. ' * 500_000}\n{first}\n{'x' * 1_000_000}\n")
    row = "1\tz" + "\t_" * 4 + "\t0" + "\t_" * 3 + "\n\n"
    (tmp_path / "conllu").write_text(row + (raw / "test.en.conllu").read_text().split("\n\n")[0] + "\n\n" + row)
    (tmp_path / "ptb").write_text(f"(S (X z))\n{(raw / 'test.en.ptb').read_text().splitlines()[0]}\n(S (X z))\n")
    flags = ["--checkpoint", str(checkpoint), "--data", str(data), "--cpu", "--max-len-b=12"]
    flags += ["--dependency", str(tmp_path / "conllu"), "--constituency", str(tmp_path / "ptb")]
    flags += ["--input", str(tmp_path / "text")]
    for buffer in ([], ["--buffer-size", "1"]):
        began = time.process_time()
        assert main(["translate", *flags, *buffer]) == 0
        assert time.process_time() - began < 20
        said = capsys.readouterr()
        assert said.err.endswith("2 lines too long, not translated: 1, 3\n")
        assert [bool(line) for line in said.out.split("\n")] == [False, True, False, False]
    (tmp_path / "ptb").write_text("(S (X z))\n" * 3)
    assert "ptb: sentence 2 is not that line of the input" in error_of("translate", *flags, "--buffer-size", "1")


@needs_models
def test_translate_parses_stdin(data, checkpoint, tmp_path):
    """In input order; an empty line stays empty, and a line that cannot be parsed is translated without a tree.

    One parser is given; the other is recorded with the data and found although its path was relative.
    """
    prepared, trees, model = shutil.copytree(data, tmp_path / "data"), tmp_path / "x.conllu", MODELS["dependency"]
    how = ("--kind", "dependency", "--model", os.path.relpath(model), "--workers", 1)
    command("parse", *how, "--input", data / "text/tok.test.en", "--out", trees)
    said = cli("binarize-syntax", "--data", prepared, "--splits", "test", "--dependency", trees).stderr
    gone = "its constituency trees are gone; give --constituency FILES as well to have both"
    assert said.endswith(f"warning: test: {gone}\n")
    assert read_record(prepared)["parsers"]["dependency"]["model"] == str(model.resolve())
    lines = ["He sees the tower .", "", " ".join(["tower"] * 600), "The old man ( he ) sleeps ."]
    line = [
        sys.executable,
        "-m",
        "fairseq_diverse.cli",
        "translate",
        "--checkpoint",
        checkpoint,
        "--data",
        prepared,
        "--cpu",
        "--max-len-b",
        12,
    ]
    line += ["--input", "-", "--constituency-model", MODELS["constituency"].resolve()]
    text = "\n".join(lines) + "\n"
    done = subprocess.run([*map(str, line)], input=text, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.split("\n")
    assert len(said) == 5 and said[0] and not said[1] and said[3] and not said[4]
    assert done.stderr == (
        f"dependency trees: spacy {model.resolve()} ({prepared}/preprocess.json: model)\n"
        f"constituency trees: benepar {MODELS['constituency'].resolve()} (--constituency-model)\n"
        "1 lines too long, not translated: 3\n1 lines without a usable tree: 3\n"
    )


def test_a_map_of_a_new_sentence_is_of_its_parsed_trees(data, checkpoint, tmp_path, monkeypatch, capsys, error_of):
    """By the recorded parsers, here by ones that know the gold trees; the same as of the sentence with its trees."""
    raw, drawn = data.parent / "raw", []
    gold = {"dependency": (raw / "test.en.conllu").read_text().split("\n\n")[2] + "\n\n"}
    gold["constituency"] = (raw / "test.en.ptb").read_text().splitlines()[2] + "\n"
    monkeypatch.setattr(live_trees, "load_parser", lambda kind, *_: kind)
    monkeypatch.setattr(live_trees, "parse_lines", lambda parser, kind, lines: [(gold[kind], True)])
    monkeypatch.setattr(attention_maps, "draw_panels", lambda *given: (drawn.append(given), Figure())[1])
    record = read_record(data)
    parsers = {kind: {"parser": "stanza", "model": str(tmp_path), "language": "en"} for kind in gold}
    prepared = shutil.copytree(data, tmp_path / "data")
    (prepared / "preprocess.json").write_text(json.dumps(record | {"parsers": parsers}))
    line = (data / "text/test.en").read_text().splitlines()[2]
    asked = ["plot", "attention", "--path", checkpoint, "--layer", 1, "--out", tmp_path / "a.png", "--data"]
    for folder, flags in ((data, ["--sentence", 3]), (prepared, ["--source", line])):
        assert main([*map(str, (*asked, folder, *flags))]) == 0
    maps = [[panel.map for row in rows for panel in row if panel] for rows, *_ in drawn]
    torch.testing.assert_close(*maps, rtol=0, atol=0, equal_nan=True)
    assert len(maps[0]) > 2
    capsys.readouterr()
    assert main([*map(str, (*asked, data, "--source", line))]) == 2
    said = "--source: needs dependency and constituency trees, and "
    assert f"{said}{data}/preprocess.json names no parser; take --sentence N" in capsys.readouterr().err
    gold["constituency"] = "\n"
    assert "--source: the parsers find no tree of it; take --sentence N" in error_of(*asked, prepared, "--source", line)


def test_a_head_map_is_of_the_split_that_is_named(data, checkpoint, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(head_map, "draw_head_map", lambda *given: (drawn.append(given), draw(*given))[1])
    common = ("plot", "head-map", f"a={checkpoint}", f"b={checkpoint}", "--data", data, "--out", tmp_path / "map.png")
    for flags in ((), ("--split", "test", "--seed", 2)):
        assert main([*map(str, (*common, *flags))]) == 0
    model, task = load_model(str(checkpoint), data)
    for (found, seed), split in zip(drawn, ("valid", "test"), strict=True):
        task.load_dataset(split)
        pairs = task.dataset(split)
        every = [pairs.collater([pairs[number] for number in range(len(pairs))])]
        expected = head_map.mean_heads(model, every, task.source_dictionary.pad())
        torch.testing.assert_close(found["a"], expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(found["a"], found["b"]) and seed == {"valid": 1, "test": 2}[split]
    assert not torch.allclose(drawn[0][0]["a"], drawn[1][0]["a"], rtol=1e-3)


def test_heads_of_a_trained_checkpoint(data, checkpoint, tmp_path, error_of):
    common = ("heads", "--checkpoint", checkpoint, "--data", data)
    figures = json.loads(command(*common, "--json"))
    assert json.loads(command(*common[:-1], f"{data}:{data}", "--json")) == figures  # trees, too, of several folders
    attentions, without_tree = figures.pop("attentions"), figures.pop("without tree")
    per_head = ["confidence", "syntactic attention", "redundant", "importance", "previous", "next"]
    assert [name for name in figures if name != "rarest"] == [*per_head, "roles"]
    assert all(len(values) == 2 and len(values[0]) == 2 for values in figures.values()) and without_tree == 0
    assert list(attentions) == [f"{c}:{layer}" for c in ("encoder", "decoder", "cross") for layer in (1, 2)]
    assert all(list(place) == ["cosine", "constant share", "effective rank", "width"] for place in attentions.values())
    test = json.loads(command(*common, "--json", "--split", "test"))
    assert test["importance"] != figures["importance"]
    own, low = (json.loads(command(*common, "--json", "--gate", gate))["redundant"] for gate in (0.5, 0.01))
    assert figures["redundant"] == own != low  # the gate of the checkpoint
    model, task = load_model(str(checkpoint), data)
    task.load_dataset("valid")
    pairs = task.dataset("valid")
    assert set(pairs.ordered_indices()[:3]) != {0, 1, 2}  # the shortest are others
    first = [pairs.collater([pairs[number]]) for number in range(3)]
    expected = inspect_heads(model, first, task.source_dictionary, None, None).heads
    chosen = json.loads(command(*common, "--json", "--sentences", 3))
    for name in ("confidence", "importance", "previous", "next"):
        torch.testing.assert_close(torch.tensor(chosen[name]), expected[name].float())  # batches of other sizes
    task.load_dataset("test")
    pairs = task.dataset("test")
    every = [pairs.collater([pairs[number] for number in range(len(pairs))])]
    expected = inspect_heads(model, every, task.source_dictionary, None, None).heads["importance"]
    torch.testing.assert_close(torch.tensor(test["importance"]), expected.float())
    said = command(*common, "--gate", 1, "--out", tmp_path / "heads.png")
    assert said.splitlines()[0].endswith("  role") and (tmp_path / "heads.png").stat().st_size > 5000
    assert re.search(r"^ +1  mean .* 1\.000 +0", said, re.MULTILINE)  # with a gate of 1 no head is important
    assert "--gate 2: must be dynamic" in error_of(*common, "--gate", 2)


def test_heads_say_how_many_sentences_have_no_tree(data, checkpoint, tmp_path, capsys):
    folder = shutil.copytree(data, tmp_path / "data")
    trees = (data.parent / "raw/valid.en.conllu").read_text().split("\n\n")
    (tmp_path / "valid").write_text("\n\n".join(["# unparsed = too long", *trees[1:]]))
    how = ("--splits", "valid", "--constituency", data.parent / "raw/{split}.en.ptb")
    command("binarize-syntax", "--data", folder, "--dependency", tmp_path / "{split}", *how)
    assert main(["heads", "--checkpoint", str(checkpoint), "--data", str(folder), "--json"]) == 0
    shown = capsys.readouterr()
    assert "1 sentences without a usable dependency tree are left out of syntactic" in shown.err
    assert json.loads(shown.out)["without tree"] == 1


def test_rows_with_a_pcfg_read_a_copy_of_the_data_with_its_trees(data, tmp_path, monkeypatch, error_of):
    """`run --prepare` makes the copy once; the data keep their own trees. Dependency trees are there already."""
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    base, copy, raw = tmp_path / "data/toy", tmp_path / "data/toy-pcfg", data.parent / "raw"
    shutil.copytree(data, base)
    (base / "trees").mkdir()
    for split in ("train", "valid", "test"):
        shutil.copy(raw / f"{split}.en.conllu", base / "trees")
    before = {path: path.read_bytes() for path in base.glob("*.*") if path.is_file()}
    flags = "{task: translation_with_syntax, syntax: phrase, enliven: enliven, parser: %s}"
    (tmp_path / "t.yaml").write_text(
        f"data: toy\nsize: tiny\nrows:\n  off: {{}}\n  gold: {flags % 'null'}\n  pcfg: {flags % 'constituency=pcfg'}\n"
    )
    rows = [*load_table(tmp_path / "t.yaml").rows.values()]

    def left():
        return preparations(find_runs(rows, [0], dry=True), [])

    with pytest.raises(ValueError, match=r"^row pcfg: .* give PCFG_MODEL=GRAMMAR, a file that .* --train-pcfg TREES"):
        next(left())
    with pytest.raises(ValueError, match=r"^row pcfg: .*does not say that pcfg made its constituency trees"):
        find_runs(rows, [1])
    monkeypatch.setenv("PCFG_MODEL", str(tmp_path / "grammar"))
    trained = ["--train-pcfg", f"{raw}/train.en.ptb", "--out", f"{tmp_path}/grammar"]
    assert main(["parse", "--kind", "constituency", *trained]) == 0
    commands = list(left())
    assert [words[0] for words in commands] == ["parse", "parse", "binarize-syntax"]
    assert all(main(words) == 0 for words in commands)
    assert before == {path: path.read_bytes() for path in before}
    off, gold, pcfg = find_runs(rows, [1])
    assert (off.data.path, gold.data.path, pcfg.data.path) == (base, base, copy) and pcfg.data.hash == off.data.hash
    assert read_record(copy)["parsers"]["constituency"]["parser"] == "pcfg"
    assert (copy / "train.en-de.en.bin").samefile(base / "train.en-de.en.bin")
    trees = [(folder / "test.en-de.en.syntax.bin").read_bytes() for folder in (base, copy)]
    assert trees[0] != trees[1] and not list(left())
    (tmp_path / "grammar").write_text("another")
    assert "train.en.ptb: there already, but of another grammar; delete it" in error_of(*commands[1])
    with pytest.raises(ValueError, match=rf"^row pcfg: {copy}/\S+: made by another grammar than .*; delete {copy}"):
        list(left())
    for folder, says in ((base, "is --data"), (copy, "has other data")):
        record = json.loads((folder / "preprocess.json").read_text())
        (copy / "preprocess.json").write_text(json.dumps(record | {"hash": "0" * 64}))
        said = error_of("binarize-syntax", "--data", base, "--copy", folder, "--dependency", "{split}")
        assert said == f"fairseq-diverse binarize-syntax: --copy {folder}: {says}; name another folder\n"
