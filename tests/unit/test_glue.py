"""Tasks of GLUE: their files, scores, rows of tables and reports."""

import json
import random
import re
from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from scipy.stats import dunnett

from fairseq_diverse.checkpoints.loading import settings_of
from fairseq_diverse.cli.glue import _read, _warn_of_other_task, write_predictions
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.kinds.lines import TaskTable
from fairseq_diverse.experiments.run import DataSet, Row, Run
from fairseq_diverse.experiments.runs import saved, schedule
from fairseq_diverse.experiments.runs.execution import Progress, RunFailed, execute
from fairseq_diverse.experiments.runs.find import find_data, preparations
from fairseq_diverse.experiments.runs.plan import steps_of
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.metrics.glue import dev_scores, glue_scores
from fairseq_diverse.preparation.glue import TASKS, _label, is_text, named_as_text, read_examples, split_name
from fairseq_diverse.preparation.pipeline import FORMAT, SCHEMA, Preprocessing
from fairseq_diverse.preparation.prepare_glue import prepare_glue
from fairseq_diverse.preparation.subwords import Subwords
from fairseq_diverse.reports.columns import task_cells
from fairseq_diverse.reports.selection import Selection, Source, best_of_grids
from tests.integration.glue_files import gpt2_files, write_task
from tests.reference import glue as reference
from tests.reference.groups import t_test
from tests.refusals import refused
from tests.unit.views import view


@pytest.mark.parametrize("name", TASKS)
def test_each_task_is_read_from_its_own_format(name, tmp_path):
    task = TASKS[name]
    written = write_task(tmp_path, name, examples=7)
    for split, file in task.files.items():
        labelled = not split.startswith("test")
        found = list(read_examples(tmp_path / name / file, task, labelled))
        assert [inputs for inputs, _ in found] == [row[:-1] for row in written[split]]
        labels = [row[-1] if task.labels else str(float(row[-1]) / 5) for row in written[split]]
        assert [label for _, label in found] == (labels if labelled else [None] * 7)
    assert all(text.count('"') == 1 for text, *_ in written["train"])  # quotes are not those of CSV


AS_TEXT = {  # Raffel et al. (2020), appendix D
    "CoLA": ("cola sentence: A", {"0": "unacceptable", "1": "acceptable"}),
    "SST-2": ("sst2 sentence: A", {"0": "negative", "1": "positive"}),
    "MRPC": ("mrpc sentence1: A sentence2: B", {"0": "not_equivalent", "1": "equivalent"}),
    "STS-B": ("stsb sentence1: A sentence2: B", {}),
    "QQP": ("qqp question1: A question2: B", {"0": "not_duplicate", "1": "duplicate"}),
    "MNLI": ("mnli hypothesis: B premise: A", {name: name for name in ("contradiction", "neutral", "entailment")}),
    "QNLI": ("qnli question: A sentence: B", {name: name for name in ("entailment", "not_entailment")}),
    "RTE": ("rte sentence1: A sentence2: B", {name: name for name in ("entailment", "not_entailment")}),
}


@pytest.mark.parametrize("name", TASKS)
def test_each_task_as_text(name):
    task, (text, words) = TASKS[name], AS_TEXT[name]
    assert task.as_text(("A", "B")[: len(task.inputs)]) == text
    assert {label: task.answer(label) for label in task.labels} == words
    assert task.read_answers([*words.values()]) == [*range(len(words))]
    if words:
        assert task.read_answers(["", "Acceptable", "entailment ", "0"]) == [None] * 4
    assert split_name(f"glue-{name}.text@DATA") == (task, "DATA") and is_text(f"glue-{name}.text@DATA")
    assert not is_text(f"glue-{name}@DATA.text") and named_as_text(f"glue-{name}@x") == f"glue-{name}.text@x"


def test_scores_as_text():
    """To the next 0.2, halves to the even one, as tf.round."""
    task = TASKS["STS-B"]
    rounded = {"0": "0.0", "5.000": "5.0", "2.57": "2.6", "3.75": "3.8", "0.1": "0.0", "0.5": "0.4"}
    for score, word in rounded.items():
        assert task.answer(_label(score, task, "")) == word
    assert task.read_answers(["3.8", "5", "", "1.0.0", "-1.0", "nan", "1e3"]) == [0.76, 1.0, *[None] * 5]


def test_answers_that_are_no_label_count_as_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(Preprocessing, "load", lambda folder: SimpleNamespace(decode=lambda line: line))
    (tmp_path / "text").mkdir()
    answers = {"MRPC": ["equivalent", "x", "y"], "MNLI": ["entailment", "x", "y"], "STS-B": ["2.0", "x", "5.0"]}
    answers["CoLA"] = ["acceptable", "x", "y"]
    targets = {"MRPC": (1, 0, 1), "MNLI": (2, 0, 2), "STS-B": (0.4, 0.8, 1.0), "CoLA": (1, 0, 1)}
    wrong = {"MRPC": (1, 1, 0), "MNLI": (2, 1, 0), "STS-B": (0.4, -0.2, 1.0), "CoLA": (1, -1, -1)}
    for name, written in answers.items():
        task = TASKS[name]
        right = [(task.words or task.labels)[target] if task.labels else f"{5 * target}" for target in targets[name]]
        (tmp_path / "text/valid.label").write_text("".join(f"{word}\n" for word in right))
        others = ["x", "y"] if task.labels else ["x"]
        assert _read(task, written, tmp_path, "valid") == ([*wrong[name]], [*targets[name]], others)
        assert _read(task, written, tmp_path, "test")[0][1] == 0


def test_rows_as_text_are_in_the_report_of_the_others():
    table = load_table("wang2021-table3", settings=["lr=0.0001", "batch-size=8"])
    rows = [next(row for row in table.rows.values() if row.family == name) for name in ("bert-base", "t5-base")]
    selection = Selection(table, rows, [], {}, Source())
    assert [kind.name for kind in selection.kinds] == ["glue"]
    assert [row.name for row in selection.of_kind(selection.kinds[0]).rows] == [row.name for row in rows]
    assert [kind_of(row).name for row in rows] == ["glue", "glue-text"]
    for row, other in (rows, rows[::-1]):
        data = find_data(other.data, dry=True)
        refused(f"data set {row.data}: no task of GLUE", kind_of(row).check_data, row, data, None)


@pytest.mark.parametrize(
    ("task", "line", "problem"),
    [
        ("CoLA", "gj04\t1\t\tIt\tis.", "4 columns separated by tabs expected, got 5"),
        ("CoLA", "gj04\t2\t\tIt is.", "label '2' is not one of 0, 1"),
        ("RTE", "0\tA\tB", "4 columns separated by tabs expected, got 3"),
        ("RTE", "0\tA\tB\tneutral", "label 'neutral' is not one of entailment, not_entailment"),
        *(("STS-B", f"0\tg\tf\ty\t0\ts\ts\tA\tB\t{x}", f"'{x}' is not a score from 0") for x in ("many", "5.5", "nan")),
    ],
)
def test_a_misshapen_line_is_named(task, line, problem, tmp_path):
    write_task(tmp_path, task, examples=3)
    path = tmp_path / task / "train.tsv"
    number = len(path.read_text().splitlines()) + 1
    path.write_text(f"{path.read_text()}{line}\n")
    refused(f"^{re.escape(f'{path}, line {number}: {problem}')}", list, read_examples(path, TASKS[task], labelled=True))


@pytest.mark.parametrize(
    ("text", "strict", "problem"),
    [
        ("sentence,label\nIt is.,1\n", False, ", line 1: no column sentence, label; files of SST-2 start with"),
        ("sentence\tlabel\n", False, ": no examples"),
        ("sentence\tlabel\tlabel\nIt is.\t1\t0\n", False, ", line 1: column label twice; leave one of them out$"),
        ("sentence\tlabel\nA\x85B\t1\n", True, ", line 2: a line separator or NUL"),
        ("sentence\tlabel\n \t1\n", True, ", line 2: a sentence is empty"),
    ],
)
def test_a_wrong_header_or_unclean_line_is_named(text, strict, problem, tmp_path):
    (path := tmp_path / "train.tsv").write_text(text)
    refused(rf"train\.tsv{problem}", list, read_examples(path, TASKS["SST-2"], labelled=True, strict=strict))
    if strict:
        assert len(list(read_examples(path, TASKS["SST-2"], labelled=True))) == 1


def test_broken_lines_of_qqp_are_skipped_unless_strict(tmp_path, monkeypatch):
    write_task(tmp_path, "QQP", examples=3)
    path = tmp_path / "QQP/train.tsv"
    path.write_text(f"{path.read_text()}7\t1\t2\tWhat is\nthis?\tWhat?\t1\n")
    found = list(read_examples(path, TASKS["QQP"], labelled=True))
    assert found.count(None) == 2 and len(found) == 5
    said = []
    monkeypatch.setattr("fairseq_diverse.preparation.prepare_glue.prepare", lambda *given, **named: True)
    assert prepare_glue(TASKS["QQP"], tmp_path, tmp_path / "out", say=said.append)
    assert said == ["train: 2 lines with a wrong number of columns left out, as in fairseq's recipe"]
    refused("line 5: 6 columns separated by tabs", list, read_examples(path, TASKS["QQP"], labelled=True, strict=True))


def test_the_second_of_two_test_files_is_not_taken_for_the_first(tmp_path, monkeypatch):
    """fairseq-preprocess would call it test."""
    write_task(tmp_path, "MNLI", examples=3)
    matched, mismatched = (tmp_path / "MNLI" / TASKS["MNLI"].files[split] for split in ("test", "test1"))
    matched.rename(tmp_path / "aside")
    refused(r"MNLI: lacks test_matched\.tsv, GLUE's own files", prepare_glue, TASKS["MNLI"], tmp_path, tmp_path / "out")
    (tmp_path / "aside").rename(matched)
    mismatched.unlink()
    monkeypatch.setattr("fairseq_diverse.preparation.prepare_glue.prepare", lambda config, *_, **__: [*config.splits])
    assert prepare_glue(TASKS["MNLI"], tmp_path, tmp_path / "out") == ["train", "valid", "valid1", "test"]


def test_names_of_data_sets():
    assert split_name("toy") is None and split_name("glue-MRPC") == (TASKS["MRPC"], "")
    assert split_name("glue-SST-2@nlu_small") == (TASKS["SST-2"], "nlu_small")
    for name, problem in {"glue-WNLI": "no task of GLUE; known: glue-CoLA", "glue-RTE@": "missing behind @"}.items():
        refused(problem, split_name, name)


def test_scores_equal_the_formulas():
    numbers = random.Random(3)
    targets = [numbers.randrange(2) for _ in range(50)]
    predictions = [t if numbers.random() < 0.7 else 1 - t for t in targets]
    values, truth = ([numbers.randrange(6) / 5 for _ in range(50)] for _ in range(2))
    given = {("matthews", "f1", "accuracy"): (predictions, targets), ("pearson", "spearman"): (values, truth)}
    for names, pair in given.items():
        found = glue_scores(names, *pair)
        assert list(found) == list(names)
        for name in names:
            assert found[name] == pytest.approx(100 * getattr(reference, name)(*pair)), name
    others = [p if numbers.random() < 0.8 else -1 for p in predictions]  # some answers are no label
    for answers in (predictions, others, [-1] * 50):
        expected = 100 * reference.gorodkin(answers, targets)
        assert glue_scores(("matthews",), answers, targets)["matthews"] == pytest.approx(expected)


def test_scores_of_equal_predictions_are_numbers():
    targets = [1, 0, 1, 1]
    names = ("matthews", "f1", "pearson", "spearman")
    assert glue_scores(names, [0] * 4, targets) == dict.fromkeys(names, 0.0)
    assert glue_scores(("pearson", "spearman"), [0, 1, 2], [1, 1, 1]) == {"pearson": 0.0, "spearman": 0.0}
    of_classes = dev_scores(("f1", "accuracy"), [0] * 4, targets, classes=True)
    assert of_classes["majority"] == {"f1": pytest.approx(600 / 7), "accuracy": 75.0}
    assert "majority" not in dev_scores(("pearson",), [0.5, 0.2], [0.1, 0.4], classes=False)
    for wrong in ([], [float("nan")] * 4):
        refused(r"equal numbers are needed|training has diverged", glue_scores, ("accuracy",), wrong, targets)


def test_predictions_have_the_form_of_glue(tmp_path):
    write_predictions(TASKS["RTE"], [1, 0], tmp_path / "RTE.tsv")
    assert (tmp_path / "RTE.tsv").read_text() == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    write_predictions(TASKS["STS-B"], [0.5, 1.2, -1], tmp_path / "S.tsv")
    assert (tmp_path / "S.tsv").read_text().split("\n")[1:4] == ["0\t2.500", "1\t5.000", "2\t0.000"]


def test_a_checkpoint_of_another_task_is_named(tmp_path, capsys):
    record = {"format": FORMAT, "schema": SCHEMA, "config": {"glue": "CoLA"}}
    (tmp_path / "preprocess.json").write_text(json.dumps(record))
    for settings in ({"data": str(tmp_path)}, Namespace(data=str(tmp_path)), {"data": "moved"}, {}):
        for kept in ({"cfg": {"task": settings}}, {"args": settings}):
            for task in ("CoLA", "RTE"):
                _warn_of_other_task("a.pt", str(settings_of("task", kept).get("data")), task)
    assert capsys.readouterr().err == f"warning: a.pt was trained on {tmp_path}, CoLA, not RTE\n" * 4


def test_subwords_of_gpt2_keep_the_spaces(tmp_path):
    gpt2_files(tmp_path)
    segmenter = Subwords("gpt2", tmp_path / "encoder.json", tmp_path / "vocab.bpe")
    text = "in  the\tinn é"
    assert segmenter.join(segmenter.segment(text)) == text
    assert segmenter.segment("inn") == "256 " + str(ord("n") - ord("!"))  # the merge i n, and n by itself
    (tmp_path / "vocab.bpe").write_text("#version\nz z\n")
    with pytest.raises(ValueError, match=r"encoder\.json: damaged, or not an? encoder\.json of GPT-2, or .*vocab\.bpe"):
        Subwords("gpt2", tmp_path / "encoder.json", tmp_path / "vocab.bpe")


SIZE = """
train: {{task: {task}, arch: roberta, criterion: {task}, batch-size: 16, warmup-updates: 10%, max-update: 100}}
average: none
"""
TABLE = """
size: {folder}/sentence_prediction.yaml
grid: {{data: [glue-RTE, glue-CoLA]}}
flags: {{max-update: 3 epochs, total-num-update: 100%}}
rows:
  first: {{size: {folder}/masked_lm.yaml, data: text, grid: {{}}, baseline: first, max-update: 20}}
  plain: {{pretrained: first, baseline: plain}}
  more: {{pretrained: first, baseline: plain, grid: {{data: [glue-RTE], dropout: [0.1, 0.2]}}}}
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Loads the table with a change and settings."""
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    for task in ("masked_lm", "sentence_prediction"):
        (tmp_path / f"{task}.yaml").write_text(SIZE.format(task=task))

    def load(*settings, old="", new=""):
        (tmp_path / "table.yaml").write_text(TABLE.format(folder=tmp_path).replace(old, new))
        return load_table(str(tmp_path / "table.yaml"), settings=list(settings)).rows

    return load


@pytest.fixture
def pretraining(table, tmp_path):
    """A pre-training, and a run that starts from it."""
    rows, data = table(), DataSet("d", tmp_path, "en", "", "h", glue="RTE")
    first = Run(rows["first"], 1, data, True, tmp_path / "first")
    return first, Run(rows["plain-data=glue-RTE"], 1, data, True, tmp_path / "later", first)


def test_averages_that_wang_2021_prints_for_bert_have_qqps_accuracy():
    """The report's have its F1, as the caption says; the note has the rows' averages of that."""
    found = load_table("wang2021-table3", settings=["lr=0.0001", "batch-size=8"])
    order = ("bert-base", "ea-bert-base", "bert-large", "realformer", "ea-bert-large")
    by_family, with_f1 = {row.family: row.published for row in found.rows.values()}, []
    for name in order:
        tasks = {task: [float(score) for score in str(by_family[name][task]).split("/")] for task in TASKS}
        with_f1.append(sum(scores[0] for scores in tasks.values()) / len(TASKS))
        with_accuracy = with_f1[-1] + (tasks["QQP"][1] - tasks["QQP"][0]) / len(TASKS)
        assert with_accuracy == pytest.approx(by_family[name]["average"], abs=0.051), name  # of rounded figures
    for name, of_test in found.cited.items():  # F1 comes first here, too
        mean = sum(float(str(of_test[task]).split("/")[0]) for task in TASKS) / len(TASKS)
        assert (mean == pytest.approx(of_test["average"], abs=0.051)) == ("RoBERTa" not in name)
        assert "RoBERTa" not in name or f"{mean:.1f}" in found.note
    assert len(found.cited) == 4 and TASKS["QQP"].metrics[0] == "f1"
    base, ours, *large = (f"{average:.1f}" for average in with_f1)
    said = f"With F1 its rows give {base} and {ours} (Base), {', '.join(large[:2])} and {large[2]} (Large)"
    assert said in " ".join(found.note.split())


def test_epochs_and_shares_are_numbers_of_updates(table):
    row = table()["plain-data=glue-RTE"]
    assert row.train["max-update"] == "468"  # 3 epochs of 156 batches of 2,490 examples
    assert (row.train["warmup-updates"], row.train["total-num-update"]) == ("47", "468")
    assert table("update-freq=4")["plain-data=glue-CoLA"].train["max-update"] == "402"  # 3 * 134 of 535 / 4
    assert table("update-freq=2")["plain-data=glue-CoLA"].train["max-update"] == "804"  # 3 * 268, not 1,605 / 2
    assert table(old="rows:", new="gpus: 4\nrows:")["plain-data=glue-RTE"].train["max-update"] == "117"  # 468 / 4
    assert table()["first"].train["warmup-updates"] == "2"
    assert table("max-update=5")["first"].max_update == 5
    refused("row first: max-update: 3 epochs: of data whose training", table, old=", max-update: 20}", new="}")
    refused("max-update: 3 epochs: needs batch-size", table, "batch-size=null")
    refused("max-update: 3 epochs: not with max-tokens; give batch-size alone", table, "max-tokens=100")


def test_data_sets_have_flags_of_their_own(table):
    """Between the table's flags and the row's."""

    def dropouts(text, *settings):
        return {name: row.train.get("dropout") for name, row in table(*settings, old="rows:", new=text).items()}

    found = dropouts("data-flags: {glue-RTE: {dropout: 0.4}, glue-CoLA: {dropout: 0.5}}\nrows:")
    assert (found["plain-data=glue-RTE"], found["plain-data=glue-CoLA"]) == ("0.4", "0.5")
    assert found["more-data=glue-RTE-dropout=0.2"] == "0.2" != found["first"]
    found = dropouts("data-flags: {glue-RTE: {dropout: 0.4}}\nrows:", "dropout=0.3")
    assert found["plain-data=glue-RTE"] == "0.3"
    not_a_list = "glue-RTE: a list of `key: value` expected, not 3"
    for wrong, problem in {"{glue-WNLI: {lr: 1}}": "glue-WNLI: no row's data", "{glue-RTE: 3}": not_a_list}.items():
        refused(problem, dropouts, f"data-flags: {wrong}\nrows:")


def test_rows_name_what_they_are_pretrained_by(table, tmp_path):
    rows = table()
    assert rows["plain-data=glue-RTE"].pretrained is rows["first"]
    assert rows["more-data=glue-RTE-dropout=0.2"].baseline == "plain-data=glue-RTE"
    key = rows["plain-data=glue-RTE"].key("h")
    plain = table(old="pretrained: first, baseline: plain}", new="baseline: plain}")
    assert plain["plain-data=glue-RTE"].key("h") != key
    assert table("pretrained=some.pt")["plain-data=glue-RTE"].pretrained == "some.pt"
    on_one_gpu = table(old="rows:", new="gpus: 4\nrows:")["plain-data=glue-RTE"].with_batch_of_paper(1)
    assert on_one_gpu.train["update-freq"] == on_one_gpu.pretrained.train["update-freq"] == "4"
    for old, new, problem in (
        ("{size:", "{pretrained: plain, size:", "row first: pretrained: not for rows of kind pretraining"),
        ("pretrained: first, baseline: plain}", "pretrained: more-data=glue-RTE-dropout=0.1}", "does not pre-train"),
        ("pretrained: first,", "pretrained: first, finetune-from-model: x.pt,", "one of them only"),
    ):
        refused(problem, table, old=old, new=new)


def test_commands_of_a_task_know_its_classes_and_checkpoint(pretraining, tmp_path):
    first, later = pretraining
    assert list(steps_of(first, {})) == ["train"]
    for task, classes in {"RTE": 2, "MNLI": 3, "STS-B": 1}.items():
        commands = steps_of(replace(later, data=replace(later.data, glue=task)), {})
        line = " ".join(commands["train"])
        assert f"--num-classes {classes} " in line and ("--regression-target" in line) == (task == "STS-B")
        assert f"--finetune-from-model {tmp_path}/first/checkpoints/checkpoint_last.pt" in line
        assert commands["glue"][3:5] == ["glue", "--checkpoint"]


def test_an_architecture_of_ones_own_of_bert_has_berts_separator(table, tmp_path, monkeypatch):
    """One </s> between two sentences, not RoBERTa's two."""
    row, data = table()["plain-data=glue-RTE"], DataSet("RTE", tmp_path, "en", "", "h", glue="RTE")
    monkeypatch.setitem(ARCH_MODEL_NAME_REGISTRY, "of_a_user", "diverse_bert")
    for arch, user_dir, two in (("diverse_bert_tiny", "", False), ("of_a_user", "x", False), ("roberta", "x", True)):
        own = replace(row, train=row.train | {"arch": arch}, user_dir=user_dir)
        flags = kind_of(own).training(Run(own, 1, data, True, tmp_path / "run"))
        assert ("separator-token" in flags) == two, arch


def test_data_are_prepared_before_those_that_have_their_subwords(table, tmp_path):
    row = table()["plain-data=glue-RTE"]
    names = ["glue-RTE@nlu_small", "nlu_small", "eraser-movies@nlu_small", "multi30k_en_de"]
    sets = [DataSet(name, tmp_path / name, "en", "", None, preparation="--raw DIR") for name in names]
    runs = [Run(row, 1, data, True, tmp_path) for data in sets]
    runs = [replace(run, row=replace(row, pretrained="")) for run in runs]
    ((command, *found),) = preparations(runs, ["--raw", "x"])
    assert command == "prepare" and found[:4] == [names[3], names[1], names[2], names[0]]


def test_runs_wait_for_their_pretraining(pretraining, table, tmp_path, monkeypatch):
    (first, later), order = pretraining, []
    other = replace(later, row=table()["plain-data=glue-CoLA"], directory=tmp_path / "other", first=None)

    def start(run, environment, say):
        for _ in range(3):
            order.append(run.directory.name)
            yield schedule.Progress("train")

    monkeypatch.setattr(schedule, "start", start)
    monkeypatch.setattr(schedule.time, "sleep", lambda seconds: None)
    assert schedule.run_all([later, first, other], jobs=3, environment={}) == 0
    assert order.index("later") > max(n for n, name in enumerate(order) if name == "first") > order.index("other")


def test_what_starts_from_a_pretraining_needs_it_finished_and_its_checkpoint(pretraining):
    first, later = pretraining
    first.checkpoints.mkdir(parents=True)
    first.checkpoint.touch()  # which training writes long before it ends
    with pytest.raises(RunFailed, match=r"^pre-training, first seed 1: it is not finished$"):
        next(execute(later, {}))
    content = {"system": "first", "data": "d", "commands": ["fairseq-train d"], "words_per_second": {}}
    content |= {"pretraining": True, "valid_nll": {"last": 3.0}} | summary(1)
    (first.directory / "summary.json").write_text(json.dumps({key: content[key] for key in content if key != "glue"}))
    assert next(execute(later, {})) == Progress("train")
    first.checkpoint.unlink()
    with pytest.raises(RunFailed, match=f"^pre-training, first seed 1: its checkpoint {first.checkpoint} is missing$"):
        next(execute(later, {}))


def test_saved_pretraining_is_repeated_where_others_start_from_it(pretraining, tmp_path, monkeypatch):
    """A copy of a summary has no checkpoint."""
    (first, later), names = pretraining, ["first"]
    summaries = [{"seed": 1, "data_hash": "h"}]
    monkeypatch.setattr(saved, "from_results", lambda folder, rows: dict.fromkeys(names, summaries))
    (tmp_path / "any.json").touch()
    monkeypatch.setattr(saved, "read_summary", lambda path, hint: {"data": "other"})
    assert saved.Copies(tmp_path, [first, later]).finished == set()
    assert saved.Copies(tmp_path, [first]).finished == {first.directory}
    names.append(later.row.name)
    assert saved.Copies(tmp_path, [first, later]).finished == {first.directory, later.directory}


def row(name: str, task: str, baseline: str = "plain", **fields) -> Row:
    train = {"task": "sentence_prediction", "max-update": "9"}
    named, compared = (f"{of}-data=glue-{task}" for of in (name, baseline))
    published, data = fields.pop("published", {}), f"glue-{task}"
    return Row(named, data, "s", train, {}, {}, compared, published, data, name, **fields)


def summary(seed: int, **figures) -> dict:
    parts = {name: {"examples": 9, "metrics": x, "majority": dict.fromkeys(x, 50.0)} for name, x in figures.items()}
    return {"seed": seed, "glue": parts, "parameters": 7, "commit": "c" * 12, "dirty": False, "data_hash": "h"}


COLA = {"plain": [50.0, 51.0, 52.5], "ours": [58.0, 57.0, 58.5], "other": [50.5, 52.0, 51.0]}
MRPC = {"plain": [80.0, 81.0, 80.5], "ours": [80.5, 80.0, 81.5], "other": [79.0, 78.0, 80.0]}


@pytest.fixture
def tables():
    """Rows and summaries of three systems on two tasks, three seeds."""
    published = {"CoLA": 56.3, "MRPC": "89.9/85.6", "average": 83.1}
    rows = [row(name, task, published=published) for task in ("CoLA", "MRPC") for name in COLA]
    found = {}
    for name in COLA:
        found[f"{name}-data=glue-CoLA"] = [summary(n, CoLA={"matthews": v}) for n, v in enumerate(COLA[name])]
        scored = [summary(n, MRPC={"f1": v, "accuracy": v - 5}) for n, v in enumerate(MRPC[name])]
        found[f"{name}-data=glue-MRPC"] = scored
    return rows, found


def test_a_report_tests_tasks_and_average_over_seeds(tables):
    shown = view(*tables)
    lines = shown.values
    found = {(line["system"], line["figure"]): line for line in lines}
    p = {}
    for figure, values in {"CoLA Matthews": COLA, "MRPC F1": MRPC}.items():
        tested = dunnett(values["ours"], values["other"], control=values["plain"])
        for system, value in zip(("ours", "other"), tested.pvalue, strict=True):
            assert found[system, figure]["seed_p"] == pytest.approx(value, abs=2e-3)
            p[system, figure] = t_test(values[system], [values["plain"], values["ours"], values["other"]])
    for place, (key, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        assert found[key]["seed_single_p"] == pytest.approx(value)
        adjusted = max(min(1, (4 - n) * v) for n, v in enumerate(sorted(p.values())[: place + 1]))
        assert found[key]["holm_p"] == pytest.approx(adjusted)
    average = found["ours", "average"]
    means = {name: [(a + b) / 2 for a, b in zip(COLA[name], MRPC[name], strict=True)] for name in COLA}
    assert average["score"] == pytest.approx(sum(means["ours"]) / 3)
    tested = dunnett(means["ours"], means["other"], control=means["plain"])
    assert average["holm_p"] == pytest.approx(tested.pvalue[0], abs=2e-3)
    second = found["ours", "MRPC accuracy"]
    assert "seed_p" not in second and second["score"] == pytest.approx(80.67 - 5, abs=0.01)
    cells = shown.cells
    assert cells[0] == ["dev set", "most frequent label", *(n + e for n in COLA for e in ("", ", published"))]
    assert cells[1][:4] == ["CoLA Matthews", "50.00", "51.17 ± 1.26", "56.3"] and cells[1][4].endswith("*")
    assert cells[3][3] == "85.6" and not cells[4][3]  # the published average is that of all tasks
    assert any("Holm's correction over these 4 p-values" in note for note in shown.notes)


@pytest.mark.parametrize("of_grid", ["", "-lr=1"])
def test_the_data_of_a_grid_may_be_paths(of_grid, tables):
    """As the file has them they are in the names of rows."""
    rows, found = tables
    named = {row.name: row.name.replace("data=", f"data=.._{row.data}s_") + of_grid for row in rows}
    of_paths = [
        replace(row, name=named[row.name], baseline=named[row.baseline], data=f"/any/{row.data}") for row in rows
    ]
    if of_grid:  # a second point, not run
        of_paths += [replace(row, name=row.name[:-1] + "2", baseline=row.baseline[:-1] + "2") for row in of_paths]
    shown = view(of_paths, {row.name: [] for row in of_paths} | {named[name]: of for name, of in found.items()})
    averages = {line["system"]: line["seeds"] for line in shown.values if line["figure"] == "average"}
    assert averages == {name + end: 3 * (end == of_grid) for name in COLA for end in {of_grid, of_grid and "-lr=2"}}
    assert not any("best points" in note for note in shown.notes)


@pytest.mark.parametrize("best", [False, True])
def test_systems_and_tasks_that_are_not_shown_are_tested_with_those_that_are(best, tables):
    """Also where --best chose another point of a grid in each task."""
    rows, found = tables
    suffix = {row.name: f"-lr={n}" * (best and row.family == "other") for n, row in enumerate(rows)}
    names = {name: name + more for name, more in suffix.items()}
    rows, found = [replace(row, name=names[row.name]) for row in rows], {names[name]: of for name, of in found.items()}
    every = {(line["system"], line["figure"]): line for line in view(rows, found).values}
    shown, hidden = ([r for r in rows if (r.family == "other") == other] for other in (False, True))
    some = view(shown, found, hidden)
    lines = some.values
    assert {line["system"] for line in lines} == {"plain", "ours"} and lines[-1]["figure"] == "average"
    for line in (line for line in lines if "holm_p" in line):
        expected = every[line["system"], line["figure"]]
        for key in ("seed_p", "holm_p"):
            assert line[key] == pytest.approx(expected[key])
        assert line["seed_rows"] == expected["seed_rows"] == 2
    assert any("Holm's correction over 4 p-values, 2 of them shown" in note for note in some.notes)
    alone = view(shown, found).values[-1]
    assert alone["row"] == "ours" and alone["holm_p"] != pytest.approx(lines[-1]["holm_p"])
    one = [r for r in shown if r.data == "glue-CoLA"]
    lines = view(one, found, [r for r in rows if r not in one]).values
    assert [line["figure"] for line in lines] == ["CoLA Matthews"] * 2 and lines[1]["holm_of"] == 4


def test_nothing_is_tested_between_different_checkpoints(tables):
    rows, found = tables
    rows = [replace(r, pretrained="a.pt" if r.family != "ours" else "b.pt") for r in rows]
    shown = view(rows, found)
    lines = shown.values
    tested = {line["system"] for line in lines if "holm_p" in line}
    assert tested == {"other"} and all(a.get("other_start") for a in lines if a["system"] == "ours" and "delta" in a)
    assert any(note.startswith("ours: starts from another checkpoint") for note in shown.notes)


def test_systems_that_rows_of_the_table_pretrain_are_tested(tables):
    rows, found = tables
    shown = view([replace(r, pretrained=row(f"{r.family}-pretraining", "CoLA")) for r in rows], found)
    assert {line["system"] for line in shown.values if "holm_p" in line} == {"ours", "other"}


def test_the_best_point_of_a_grid_is_chosen_by_the_dev_set_of_each_task(tables):
    rows, found = tables
    points = [replace(r, family="ours" if r.family == "other" else r.family) for r in rows]
    best = best_of_grids(points, found)
    assert [r.name for r in best] == [f"{n}-data=glue-{t}" for t in ("CoLA", "MRPC") for n in ("plain", "ours")]
    found["other-data=glue-MRPC"] = [summary(0, MRPC={"f1": 90.0, "accuracy": 1.0})]
    best = best_of_grids(points, found)
    assert [r.name for r in best][3] == "other-data=glue-MRPC" and best[3].baseline == "plain-data=glue-MRPC"
    shown = view(best, found)
    assert {line["system"] for line in shown.values} == {"plain", "ours"}
    assert "other-data=glue-MRPC" in next(note for note in shown.notes if note.startswith("the best"))


def test_tasks_are_columns_where_there_are_more_systems(tables):
    rows, found = tables
    shown = view(rows, found)
    many = [replace(line, system=f"{line.system}-{n}") for n in range(9) for line in shown.lines]
    few, turned = (task_cells(TaskTable("dev set", "guessing", "parameters"), lines) for lines in (shown.lines, many))
    assert few[0][0] == "dev set" and [row[0] for row in few[1:]] == turned[0][1:] and turned[0][0] == "system"
    systems = [name for name in few[0][1:] if name != "guessing" and not name.endswith("published")]
    for system in systems:
        column = [row[few[0].index(system)] for row in few[1:]]
        assert all(row[1:] == column for row in turned if row[0].startswith(f"{system}-") and "published" not in row[0])
    assert len([row for row in turned if row[0].endswith("-0")]) == len(systems)


def test_pretraining_is_compared_by_its_validation_loss():
    train = {"task": "masked_lm", "max-update": "9"}
    rows = [replace(row(n, "CoLA"), name=n, baseline="plain", train=train) for n in ("plain", "ours")]
    found = {
        name: [{**summary(n), "valid_nll": {"last": value, "best": 0}, "updates": 9} for n, value in enumerate(values)]
        for name, values in {"plain": [3.0, 3.1], "ours": [2.5, 2.6]}.items()
    }
    shown = view(rows, found)
    cells = shown.cells
    assert cells[0] == ["row", "parameters", "updates", "validation NLL", "Δ NLL", "seeds"]
    assert cells[2][3] == "2.5500 ± 0.0707" and cells[2][4].startswith("-0.5000 ± 0.0707* (p = 0.0")
    assert any("nats a masked token" in note for note in shown.notes)


def test_what_cannot_be_shown_or_chosen_is_refused(tables):
    """Two data sets of one task; points of a grid without a validation loss."""
    rows, found = tables
    other = replace(rows[0], name="plain-data=glue-CoLA@other", data="glue-CoLA@other")
    found[other.name] = found[rows[0].name]
    refused(r"plain: two data sets of CoLA, .* and glue-CoLA@other; choose one with", view, [*rows, other], found)
    points = [replace(row, train={**row.train, "task": "logical_inference"}, family="one", data="d") for row in rows]
    said = "--best: row plain-data=glue-CoLA has no validation NLL to choose by"
    refused(said, best_of_grids, points, {row.name: [{"valid_nll": None}] for row in rows})
