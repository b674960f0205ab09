"""Masked language models and GLUE as a user runs them: data, pre-training, fine-tuning, scores, report."""

import json
import re
from collections import Counter

import pytest
from fairseq.data import Dictionary, data_utils
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask
from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizer

from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.models.bert import segments
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation import prepare_glue as preparation
from fairseq_diverse.preparation.wordpiece import SPECIAL
from tests.integration.commands import caller, cli, runs_in, shared_data
from tests.integration.glue_files import gpt2_files, write_task
from tests.integration.test_prepare import edit, lines_of, write_raw

SIZE = """
train:
  task: {task}
  arch: roberta
  encoder-layers: 1
  encoder-embed-dim: 8
  encoder-ffn-embed-dim: 8
  encoder-attention-heads: 2
  max-positions: 64
  criterion: {task}
  optimizer: adam
  lr: 0.01
  batch-size: 8
  required-batch-size-multiple: 1
  max-update: 3
  {more}
average: none
"""
TABLE = """
title: Tiny
size: {folder}/sentence_prediction.yaml
grid: {{data: [glue-MRPC@text.en, glue-STS-B@text.en]}}
rows:
  first: {{size: {folder}/masked_lm.yaml, data: text.en, grid: {{}}, baseline: first}}
  plain: {{pretrained: first, baseline: plain}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    write_raw(folder / "raw")
    (folder / "text.yaml").write_text(json.dumps({"source": "en", "target": "de", "bpe": {"size": 30}}))
    for task in ("MRPC", "STS-B", "MNLI"):
        write_task(folder / "raw", task)
    write_task(folder / "unclean", "RTE")
    edit(folder / "unclean/RTE/train.tsv", 3, "1\t\ta man walks\tentailment")
    return folder


@pytest.fixture
def call(folder):
    return caller(folder)


def binarized(path, dictionary):
    return [*map(dictionary.string, data_utils.load_indexed_dataset(str(path), dictionary))]


def encoded(data, side, name):
    """Dictionary, steps, lines and binarized lines of training data, which are those that the steps make again."""
    path = data / name if side == "input0" else data
    dictionary, prepared = Dictionary.load(str(path / "dict.txt")), Preprocessing.load(data)
    lines, found = lines_of(data / f"text/train.{name}"), binarized(path / "train", dictionary)
    assert found == [prepared.encode(line, side) for line in lines]
    return dictionary, prepared, lines, found


def test_a_task_is_prepared_with_the_subwords_of_text(folder, call):
    said = call("prepare", folder / "text.yaml", "--monolingual", "--raw", folder / "raw")
    assert "train: 40 of 40 lines kept" in said
    text = folder / "runs/data/text.en"
    dictionary, prepared, lines, _ = encoded(text, "source", "en")
    assert (prepared.source, prepared.target) == ("en", "") and lines == lines_of(folder / "raw/train.en")
    said = call("prepare", "glue-MNLI@text.en", "glue-STS-B@text.en", "glue-MRPC@text.en", "--raw", folder / "raw")
    assert said.count("train: 12 of 12 examples kept") == 3
    for task, inputs in {"MNLI": 2, "STS-B": 2, "MRPC": 2}.items():
        out = folder / f"runs/data/glue-{task}@text.en"
        splits = ("train", "valid", "test", *(("valid1", "test1") if task == "MNLI" else ()))
        for number in range(inputs):
            assert (out / f"input{number}/dict.txt").read_bytes() == (text / "dict.txt").read_bytes()
            for split in splits:
                lines = lines_of(out / f"text/{split}.input{number}")
                numbers = [dictionary.encode_line(prepared.encode(line), add_if_not_exist=False) for line in lines]
                assert binarized(out / f"input{number}/{split}", dictionary) == [*map(dictionary.string, numbers)]
    mnli = folder / "runs/data/glue-MNLI@text.en/label"
    labels = Dictionary.load(str(mnli / "dict.txt"))
    assert labels.symbols[labels.nspecial :] == ["contradiction", "neutral", "entailment"]
    assert binarized(mnli / "valid1", labels)[:3] == ["entailment", "contradiction", "neutral"]
    assert lines_of(folder / "runs/data/glue-STS-B@text.en/label/valid.label")[:3] == ["0.2", "0.4", "0.6"]
    asked = ("prepare", "glue-MRPC@text.en", "--raw", folder / "raw/MRPC")
    assert "already prepared" in call(*asked)
    for path, old, new in ((folder / "raw/MRPC/train.tsv", "\n0\t", "\n1\t"), (text / "dict.txt", "\n", "\nnew 1\n")):
        before = path.read_text()
        path.write_text(before.replace(old, new, 1))
        assert "or other raw files; choose another --out or add --overwrite" in call(*asked, fails=2)
        path.write_text(before)


def test_data_with_the_subwords_of_text_are_not_taken_for_data_with_their_own(folder, call):
    """All other settings are the same: the text has as many subwords as are learned for a task."""
    (folder / "large.yaml").write_text(json.dumps({"source": "en", "bpe": {"size": preparation.BPE_SIZE}}))
    call("prepare", folder / "large.yaml", "--raw", folder / "raw")
    asked = ("--raw", folder / "raw", "--out", folder / "one")
    call("prepare", "glue-MRPC@large", *asked)
    assert "choose another --out or add --overwrite" in call("prepare", "glue-MRPC", *asked, fails=2)


@pytest.mark.parametrize("as_before", [False, True], ids=["now", "before Moses' truecasing"])
def test_a_task_has_the_case_and_the_subwords_of_truecased_text(as_before, call, folder):
    """Whose words are rarer and mostly in lower case; l'or shows that the task is tokenized as French, too."""
    name = f"cased{as_before:d}"
    text = ["Elle voit la rose de l'or.", "La rose est ici, dit Rose.", "Une rose est une rose.", "Ulm est là.", "Ulm."]
    for split, count in (("train", 2), ("valid", 1)):
        (folder / f"raw/{split}.fr_FR").write_text("\n".join(text * count) + "\n")
    settings = {"source": "fr_FR", "target": "de", "truecase": True, "bpe": {"size": 60, "threshold": 5}}
    (folder / f"{name}.yaml").write_text(json.dumps(settings))
    call("prepare", folder / f"{name}.yaml", "--monolingual", "--raw", folder / "raw")
    data = folder / f"runs/data/{name}.fr_FR"
    if as_before:
        record = json.loads((data / "preprocess.json").read_text())
        del record["truecasing"]
        (data / "preprocess.json").write_text(json.dumps(record))
    (folder / name / "RTE").mkdir(parents=True)
    lines = ["Rose voit Ulm.", "Ici, elle voit Rose et l'or."]
    for split, count in (("train", 8), ("dev", 2)):
        rows = "".join(f"{number}\t{lines[0]}\t{lines[1]}\tentailment\n" for number in range(count))
        (folder / name / f"RTE/{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows)
    call("prepare", f"glue-RTE@{name}.fr_FR", "--raw", folder / name)
    text_steps, out = Preprocessing.load(data), folder / f"runs/data/glue-RTE@{name}.fr_FR"
    task_steps = Preprocessing.load(out)
    for number, line in enumerate(lines):
        expected = text_steps.encode(line)
        assert task_steps.encode(line, f"input{number}") == expected
        assert lines_of(out / f"text/bpe.train.input{number}") == [expected] * 8


def test_a_task_is_prepared_by_itself_and_with_gpt2(folder, call):
    write_task(folder / "raw", "RTE", tests=False)
    call("prepare", "glue-RTE", "--raw", folder / "raw")
    out = folder / "runs/data/glue-RTE"
    dictionary = Dictionary.load(str(out / "input0/dict.txt"))
    assert (out / "input0/dict.txt").read_bytes() == (out / "input1/dict.txt").read_bytes() and len(dictionary) % 8 == 0
    learned = [word for side in "01" for line in lines_of(out / f"text/bpe.train.input{side}") for word in line.split()]
    counts = dict(zip(dictionary.symbols[dictionary.nspecial :], dictionary.count[dictionary.nspecial :], strict=True))
    assert Counter(counts) == Counter(learned)
    found = [binarized(out / f"input{side}/{split}", dictionary) for side in "01" for split in ("train", "valid")]
    assert not any(dictionary.unk_word in line.split() for lines in found for line in lines)
    (folder / "gpt2").mkdir(exist_ok=True)
    said = call("prepare", "glue-RTE", "--raw", folder / "raw", "--gpt2-bpe", folder / "gpt2", fails=2)
    assert "lacks encoder.json, vocab.bpe, dict.txt" in said
    gpt2_files(folder / "gpt2")
    taken = ("--gpt2-bpe", folder / "gpt2", "--raw", folder / "raw")
    call("prepare", "glue-RTE", *taken, "--overwrite")
    call("prepare", folder / "text.yaml", "--monolingual", "de", *taken, "--out", folder / "de")
    own = [word for split in ("train", "valid") for word in (f"--{split}", folder / f"raw/{split}")]
    call("prepare", "--source", "de", *own, *taken[:2], "--out", folder / "own")
    assert f" --gpt2-bpe {folder / 'gpt2'} --overwrite\n" in (folder / "own.yaml").read_text()
    assert "already prepared" in call("prepare", "glue-RTE", *taken)
    of_text = ((folder / name, "source", "de") for name in ("de", "own"))
    for data, side, name in ((out, "input0", "input0"), *of_text):
        _, prepared, lines, found = encoded(data, side, name)
        assert [prepared.decode(line, side) for line in found] == lines


def test_tasks_and_text_are_prepared_with_wordpiece(folder, call):
    """Of its dictionary, too, as long as a text without words of it; beside GPT-2's, under another name."""
    write_task(folder / "raw", "RTE", tests=False)
    (folder / "bert").mkdir()
    letters = [chr(number) for number in range(33, 127) if not chr(number).isupper()]
    pieces = [*SPECIAL, "walk", "##s", *letters, *(f"##{letter}" for letter in letters if letter.isalpha())]
    (folder / "bert/vocab.txt").write_text("\n".join([*pieces[:5], *sorted({*pieces[5:]})]))
    gpt2_files(folder / "gpt2")
    taken = ("--wordpiece", folder / "bert", "--raw", folder / "raw")
    call("prepare", "glue-RTE", "glue-RTE@bert", *taken, "--gpt2-bpe", folder / "gpt2", "--workers", 2, "--overwrite")
    call("prepare", folder / "text.yaml", "--monolingual", "en", *taken, "--out", folder / "pieces")
    call("prepare", f"glue-RTE@{folder}/pieces", "--raw", folder / "raw", "--out", folder / "again")
    task = folder / "runs/data/glue-RTE@bert"
    for data, side, name in ((task, "input0", "input0"), (folder / "pieces", "source", "en")):
        dictionary, prepared, lines, found = encoded(data, side, name)
        assert len(dictionary) == len({*pieces}) and dictionary.symbols[-1] == "<mask>"
        joined = [line.replace(" ", "").replace("##", "") for line in found]
        assert joined == [line.lower().replace(" ", "") for line in lines]
        assert prepared.record["bpe"]["kind"] == "wordpiece" and "tokenizers" in prepared.record["versions"]
    assert (folder / "again/input0/train.bin").read_bytes() == (task / "input0/train.bin").read_bytes()
    assert json.loads((folder / "runs/data/glue-RTE/preprocess.json").read_text())["bpe"]["kind"] == "gpt2"
    assert "already prepared" in call("prepare", "glue-RTE@bert", *taken)


def test_real_pairs_reach_a_bert_as_in_transformers(call, tmp_path):
    """Numbers and segments of [CLS] x [SEP] y [SEP]."""
    (tmp_path / "raw").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        lines = lines_of(shared_data("glue") / "RTE" / name)[:13]
        (tmp_path / "raw" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    learned = BertWordPieceTokenizer()
    learned.train(str(tmp_path / "raw/train.tsv"), vocab_size=300, show_progress=False)
    learned.save_model(str(tmp_path))
    call("prepare", "glue-RTE", "--raw", tmp_path / "raw", "--wordpiece", tmp_path, "--out", tmp_path / "out")
    config = SentencePredictionConfig(data=str(tmp_path / "out"), num_classes=2, init_token=0, no_shuffle=True, seed=1)
    task = SentencePredictionTask.setup_task(config)
    read = task.load_dataset("valid")
    known = BertTokenizer(str(tmp_path / "vocab.txt"))
    theirs = known([*lines_of(tmp_path / "out/text/valid.input0")], [*lines_of(tmp_path / "out/text/valid.input1")])
    ids = [known.convert_tokens_to_ids({v: k for k, v in SPECIAL.items()}.get(w, w)) for w in task.dictionary.symbols]
    assert len(read) == len(theirs.input_ids) == 12 and len(task.dictionary) == len(known)
    for number, (expected, of_type) in enumerate(zip(theirs.input_ids, theirs.token_type_ids, strict=True)):
        tokens = read[number]["net_input.src_tokens"]
        assert [ids[token] for token in tokens] == expected and 0 < sum(of_type) < len(of_type)
        assert segments(tokens[None], task.dictionary.eos()).tolist() == [of_type]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("glue-RTE@bert --raw raw", "has the subwords of a BERT; give the folder of its vocab.txt as --wordpiece"),
        ("glue-RTE --raw raw --wordpiece no", "no/vocab.txt: cannot be read (No such"),
        ("glue-CoLA --raw raw", "raw: lacks train.tsv, dev.tsv, GLUE's own files"),
        ("glue-RTE@nowhere --raw raw", "nowhere/preprocess.json: cannot be read"),
        ("glue-RTE@text.en --raw raw --gpt2-bpe x", "takes the subwords of text.en; leave out"),
        ("glue-RTE --archives raw", "give their folder as --raw, without --archives"),
        ("text.yaml --raw raw --monolingual fr", "--monolingual fr: text has en, de"),
        ("text.yaml --raw raw --gpt2-bpe x", "has two, add --monolingual"),
        ("glue-RTE --raw unclean --strict", "train.tsv, line 3: a sentence is empty; fix the file"),
        ("multi30k_en_de --archives x --monolingual", "--monolingual: goes with --raw"),
        ("glue-MRPC --raw raw --as-text", "glue-MRPC.text: a task as text needs the subwords of a T5: --sentencepiece"),
        ("glue-MRPC.text@t5 --raw raw", "has the subwords of a T5; give the folder of its spiece.model as --sentencep"),
        ("glue-MRPC.text --raw raw --sentencepiece .", "--sentencepiece .: no spiece.model, the model of a T5's subwo"),
        ("text --raw raw --as-text", "--as-text: text is not a task of GLUE; known: "),
    ],
)
def test_wrong_requests_are_refused_in_one_line(arguments, problem, folder, monkeypatch, error_of):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", "runs")
    assert problem in error_of("prepare", *arguments.split())


def test_the_flags_of_prepare_are_those_of_a_task(folder, tmp_path, monkeypatch, output_of):
    given = []
    monkeypatch.setattr(preparation, "prepare_glue", lambda *_, **flags: given.append(flags) or True)
    output_of("prepare", "glue-RTE", "--raw", folder / "raw", "--out", tmp_path / "out", "--workers", 2, "--strict")
    assert given == [{"as_text": False, "strict": True, "workers": 2, "overwrite": False}]


def test_a_table_pretrains_fine_tunes_scores_and_reports(folder, call, tmp_path):
    data = folder / "runs/data"
    call("prepare", folder / "text.yaml", "--monolingual", "--raw", folder / "raw")
    call("prepare", "glue-MRPC@text.en", "glue-STS-B@text.en", "--raw", folder / "raw")
    text = "sample-break-mode: complete\n  tokens-per-sample: 32"
    for task, more in {"masked_lm": text, "sentence_prediction": "disable-validation: true"}.items():
        (folder / f"{task}.yaml").write_text(SIZE.format(task=task, more=more))
    (folder / "table.yaml").write_text(TABLE.format(folder=folder))
    call("run", folder / "table.yaml", "--rows", "plain", "--jobs", 2)
    (first,) = (folder / "runs").glob("text.en-masked_lm-first-*/seed1")
    (mrpc,) = (folder / "runs").glob("glue-MRPC_text.en-*/seed1")
    before, after = (load_checkpoint(path / "checkpoints/checkpoint_last.pt")["model"] for path in (first, mrpc))
    name = "encoder.sentence_encoder.embed_tokens.weight"
    assert before[name].shape == after[name].shape
    assert f"loading pretrained model from {first}/checkpoints/checkpoint_last.pt" in (mrpc / "train.log").read_text()
    summary = json.loads((mrpc / "summary.json").read_text())
    metrics = summary["glue"]["MRPC"]["metrics"]
    assert list(metrics) == ["f1", "accuracy"] and summary["glue"]["MRPC"]["examples"] == 12
    predicted = lines_of(mrpc / "predictions/MRPC.tsv")
    assert predicted[0] == "index\tprediction" and [a.split("\t")[0] for a in predicted[1:]] == [*map(str, range(12))]
    again = call("glue", "--checkpoint", mrpc / "checkpoints/checkpoint_last.pt", "--data", data / "glue-MRPC@text.en")
    assert f"MRPC accuracy {metrics['accuracy']:.2f} (most frequent label: 50.00), 12 examples" in again
    call("export", "--to", "safetensors", "--out", tmp_path / "shared", mrpc)
    assert again == call("glue", "--checkpoint", tmp_path / "shared", "--data", data / "glue-MRPC@text.en")
    card = (tmp_path / "shared/README.md").read_text()
    assert f"| MRPC F1 | {metrics['f1']:.2f} |" in card and f"| MRPC accuracy | {metrics['accuracy']:.2f} |" in card
    program = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1].replace("DIR", str(tmp_path / "shared"))
    exec(program, found := {})
    assert found["logits"].shape == (1, 2)
    for run, name, flags, message in (
        (first, "MRPC", (), "checkpoint_last.pt: not trained for MRPC, --task sentence_prediction"),
        (mrpc, "STS-B", (), "checkpoint_last.pt: not trained for STS-B, --task sentence_prediction"),  # not two classes
        (mrpc, "MRPC", ("--max-tokens", 0), "--max-tokens 0: must be above 0"),
    ):
        asked = ("--data", data / f"glue-{name}@text.en", "--checkpoint", run / "checkpoints/checkpoint_last.pt")
        assert call("glue", *asked, *flags, fails=2).endswith(message)
    shown = call("report", folder / "table.yaml", "--save", tmp_path / "saved")
    (stsb,) = (folder / "runs").glob("glue-STS-B_text.en-*/seed1/summary.json")
    pearson = json.loads(stsb.read_text())["glue"]["STS-B"]["metrics"]["pearson"]
    average = (metrics["f1"] + pearson) / 2
    rows = {line.split("  ")[0]: line.split()[-1] for line in shown.splitlines() if line}
    assert rows["MRPC F1"] == f"{metrics['f1']:.2f}" and rows["average"] == f"{average:.2f}"
    nll = json.loads((first / "summary.json").read_text())["valid_nll"]["last"]
    assert f"  {nll:.4f}  " in shown and "Pre-training" in shown
    assert call("report", folder / "table.yaml", "--results", tmp_path / "saved") == shown
    assert call("report", folder / "table.yaml", "--baseline", "plain") == shown
    page = call("report", folder / "table.yaml", "--format", "html")
    assert page.count("<table") == 2 and "Training and validation loss" in page
    assert "done before" in cli("run", folder / "table.yaml", env=runs_in(folder / "runs")).stderr


def test_data_with_another_dictionary_are_refused(folder, call):
    for task in ("masked_lm", "sentence_prediction"):
        (folder / f"{task}.yaml").write_text(SIZE.format(task=task, more=""))
    call("prepare", folder / "text.yaml", "--monolingual", "--raw", folder / "raw")
    write_task(folder / "raw", "QNLI")
    call("prepare", "glue-QNLI", "--raw", folder / "raw")
    table = TABLE.format(folder=folder).replace("glue-MRPC@text.en, glue-STS-B@text.en", "glue-QNLI")
    (folder / "other.yaml").write_text(table)
    said = call("run", folder / "other.yaml", fails=2)
    assert "glue-QNLI: has another dictionary than text.en, on which row first pre-trains" in said
    (folder / "other.yaml").write_text(table.replace("pretrained: first", "pretrained: nothing.pt"))
    said = call("run", folder / "other.yaml", fails=2)
    assert "pretrained: nothing.pt: neither a row of this table nor a checkpoint; give one with --set" in said
