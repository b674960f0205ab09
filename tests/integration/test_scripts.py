"""The shell scripts as a user runs them, with a tiny model."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.toy.probing import write_probing
from tests.integration.commands import PROGRAMS, ROOT, cli, make_bert, script
from tests.integration.glue_files import WORDS, write_task
from tests.integration.test_parse import MODELS, needs_models
from tests.integration.test_prepare import write_raw
from tests.integration.test_run import SIZE, UPDATES
from tests.integration.training import train
from tests.unit.test_records import RECORD
from tests.unit.test_report import summary

SCRIPTS = ROOT / "scripts"
PAIRS = {"multi30k": "en-de|en-fr|en-cs", "iwslt14": "de-en", "iwslt16": "de-en"}
PAIRS |= {"wmt14": "en-de|en-fr", "wmt16": "en-de|en-cs", "wmt17": "en-de|en-cs|zh-en"}
pytestmark = pytest.mark.usefixtures("forks")


def call(name: str, *arguments: object, status: int = 0, **variables: object) -> str:
    """What a script prints, errors first."""
    env = os.environ | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}
    done = script(f"scripts/{name}", *arguments, fails=status, env=env)
    return done.stderr + done.stdout


@pytest.fixture
def asked_of(tmp_path):
    """Runs a script whose programs do nothing, with data from fr to de; returns their command lines."""
    log, data = tmp_path / "asked", tmp_path / "data"
    data.mkdir()
    record = {"source": "fr", "target": "de", "splits": dict.fromkeys(("train", "valid", "test", "test1"))}
    (data / "preprocess.json").write_text(json.dumps(record))
    functions = {f"BASH_FUNC_{name}%%": f'() {{ echo "{name} $*" >>{log}; }}' for name in PROGRAMS}

    def run(name: str, *arguments: object, **variables: object) -> list[str]:
        log.write_text("")
        call(name, *arguments, **variables, **functions)
        return log.read_text().splitlines()

    return run


@pytest.fixture
def size(tmp_path) -> Path:
    path = tmp_path / "mini.yaml"
    path.write_text(SIZE.replace(f"max-update: {UPDATES}", "max-update: 12").replace("[-20, 20]", "1"))
    return path


@pytest.fixture
def raw(tmp_path) -> Path:
    folder = write_raw(tmp_path / "raw", lines=100)
    for path in list(folder.iterdir()):
        path.rename(str(path).replace("/valid.", "/val.").replace("/test.", "/test_2016_flickr."))
    return folder


@needs_models
def test_a_table_from_raw_files_to_its_report_and_a_figure(tmp_path, raw, size):
    """With syntax, including parsing. The figure has nothing left to train."""
    models = {f"{kind.upper()}_MODEL": path for kind, path in MODELS.items()}
    asked = ["zhang2021", 1, "--raw", raw, "--data", "multi30k", "--size", size, "--rows=transformer,lpea-rhe"]
    asked += ["--set", "average.last=0"]
    for name, number in (("table.sh", 1), ("figure.sh", 5)):
        asked[1] = number
        output = call(name, *asked, "--jobs", 2, FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs", **models)
        table = output[output.index("Zhang et al. (2021), Table 1") :]
        assert re.search(r"^\| transformer \| [\d.]+ ± [\d.]+ \| ", table, re.MULTILINE)
        assert re.search(r"^\| lpea-rhe \| [\d.]+ ± .* 26.28 \| 71.82M \|$", table, re.MULTILINE)
        assert '<th scope="col">row</th>' in (tmp_path / "runs/reports/zhang2021-table1.html").read_text()
    assert output.count("done before") == 2 and "learn" not in output
    maps = tmp_path / "runs/figures/zhang2021-figure5.png"
    assert output.splitlines()[-1] == f"{maps}: encoder self-attention, layer 1" and maps.stat().st_size > 5000
    lengths = ["li2022", 3, "--data", "multi30k", "--size", size, "--out", tmp_path / "lengths.png"]
    assert "mean" in call("figure.sh", *lengths, FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs").splitlines()[-2]


def test_a_figure_of_rows_without_a_validation_loss(tmp_path):
    cli("logic", "--out", tmp_path / "logic", "--pairs", 40)
    asked = f"li2021 4 --data {tmp_path}/logic --size logic_small --rows=baseline --set max-update=2"
    said = call("figure.sh", *asked.split(), FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs")
    assert said.splitlines()[-1] == f"{tmp_path}/runs/figures/li2021-figure4.png"


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    """The embedded corpus with its trees, prepared."""
    folder = tmp_path_factory.mktemp("toy")
    for line in (
        f"toy --out {folder}/raw --sentences 200 --valid 10 --test 10",
        f"prepare toy --raw {folder}/raw --out {folder}/data",
        f"binarize-syntax --data {folder}/data --dependency {folder}/raw/{{split}}.en.conllu "
        f"--constituency {folder}/raw/{{split}}.en.ptb",
    ):
        cli(*line.split())
    return folder / "data"


@pytest.mark.parametrize(
    ("paper", "system", "signs"),
    [
        ("li2021", "both", ["disagreement", "routing='em'"]),
        ("zhang2021", "lpea-rhe", ["syntax='phrase'", "enliven='enliven'"]),
        ("li2022", "interacting 4", ["interacting='concat'", "encoder_attention_heads=4", "decoder_attention_heads=4"]),
        ("wang2021", "ea-lite", ["evolving_on='encoder,decoder,cross'", "evolving_carry=0.1"]),
    ],
)
def test_the_script_of_a_paper(tmp_path, toy, paper, system, signs):
    small = "--arch diverse_transformer_tiny --max-update 4 --save-interval-updates 2 --max-tokens 300"
    output = call(f"{paper}.sh", toy, tmp_path, *system.split(), *small.split(), LAST=2)
    for sign in signs:
        assert re.search(sign.replace("=", "'?[=:] ?"), output), sign
    assert re.search(r"^\S*test.log +[\d.]+ ", output, re.MULTILINE)
    assert (tmp_path / "checkpoint_average.pt").exists()


def test_settings_reach_the_programs_of_a_script(tmp_path, asked_of):
    data, encoder = tmp_path / "data", tmp_path / "encoder.pt"
    encoder.touch()
    train, generate, _ = asked_of("train-and-score.sh", data, tmp_path, "--max-update", 7)
    assert " --dropout 0.1 " in train and train.endswith(" --max-update 7")
    assert " --beam 4 --lenpen 0.6 " in generate
    *_, generate, _ = asked_of("train-and-score.sh", data, tmp_path, BEAM=3, LENPEN=1.5)
    assert " --beam 3 --lenpen 1.5 " in generate
    *_, generate, _ = asked_of("li2022.sh", data, tmp_path, "plain", 4)
    assert " --beam 4 --lenpen 1.0 " in generate
    train, generate, _ = asked_of("train-and-score.sh", data, tmp_path, USER_DIR="mine")
    assert " --user-dir mine " in train and " --user-dir mine " in generate
    generate, _ = asked_of("tune-lenpen.sh", encoder, data, 1, USER_DIR="mine")
    assert " --user-dir mine " in generate
    *tuned, _ = asked_of("tune-lenpen.sh", encoder, data, 0.5, 2, BEAM=3)
    assert [re.findall(r" (--(?:beam|lenpen) \S+)", line) for line in tuned] == [
        ["--beam 3", f"--lenpen {lenpen}"] for lenpen in ("0.5", "2")
    ]
    for task in ("translation", "translation_with_syntax"):
        generate, _ = asked_of("tune-lenpen.sh", encoder, data, 1, **{"TASK": task} if "syntax" in task else {})
        assert f" --task {task} " in generate
    for variables, expected in (({}, "--seeds 1 --jobs 2"), ({"SEEDS": "1,2", "JOBS": 3}, "--seeds 1,2 --jobs 3")):
        (trained,) = asked_of("probe.sh", tmp_path, data, tmp_path, f"name={encoder}", **variables)
        assert trained.endswith(f"/probing.yaml {expected} --report {tmp_path}/probing.html")


@pytest.mark.parametrize("flags", ["", " --workers 3"])
def test_trees_are_added_to_every_split_of_the_source(tmp_path, asked_of, flags):
    data, splits = tmp_path / "data", "--splits train,valid,test,test1"
    lines = asked_of("../data-prep/add-trees.sh", data, WORKERS=flags[-1:], CONSTITUENCY_MODEL="m")
    trees = [f"{data}/trees/{{split}}.fr.{end}" for end in ("conllu", "ptb")]
    text = f"{splits} --input {data}/text/tok.{{split}}.fr --out"
    assert lines == [
        f"fairseq-diverse parse --kind dependency --language fr{flags} {text} {trees[0]}",
        f"fairseq-diverse parse --kind constituency --language fr --model m{flags} {text} {trees[1]}",
        f"fairseq-diverse binarize-syntax --data {data} {splits} --dependency {trees[0]} --constituency {trees[1]}",
    ]
    assert asked_of("../data-prep/add-trees.sh", data, "constituency") == [
        f"fairseq-diverse parse --kind constituency --language fr {text} {trees[1]}",
        f"fairseq-diverse binarize-syntax --data {data} {splits} --constituency {trees[1]}",
    ]


def test_trained_encoders_are_probed(tmp_path, toy):
    write_probing(tmp_path / "probing", 100)
    train(toy, tmp_path / "model")
    size = tmp_path / "size.yaml"
    size.write_text((SCRIPTS.parent / "configs/size/probing_small.yaml").read_text().replace("1000", "2"))
    encoders = [f"{name}={tmp_path}/model/checkpoint_last.pt" for name in ("off", "it's")]
    some = {"SIZE": size, "PROBES": "sentence_length,word_content"}
    table = call("probe.sh", tmp_path / "probing", toy, tmp_path / "out", *encoders, **some)
    assert re.search(r"^\| probe \| largest class \| off \| it's \|$", table, re.MULTILINE), table
    figures = r"^\| (sentence_length|word_content|Surface) \|.*(\| \d+\.\d\d ){2}\|$"
    assert len(re.findall(figures, table, re.MULTILINE)) == 3


def test_a_table_is_only_shown(tmp_path):
    """Nothing is prepared: with a short form of --dry-run, and with --help after a table."""
    asked = ["table.sh", "li2021", 1, "--rows", "baseline", "--no-download"]
    shown = call(*asked, "--dry", FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs")
    assert re.search("^# baseline seed 1: data [a-z0-9_]+ not prepared, ", shown, re.MULTILINE)
    assert call(*asked, "--help", status=2, FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs").startswith("usage: ")
    assert not (tmp_path / "runs").exists()


def test_the_comparison_at_the_papers_size(tmp_path):
    shown = call("comparison.sh", "iwslt14", "--dry-run", FAIRSEQ_DIVERSE_RUNS=tmp_path)
    assert len(re.findall(r"^# [\w-]+ seed [1-5]: data iwslt14_de_en not prepared, ", shown, re.MULTILINE)) == 24 * 5
    chosen = call("comparison.sh", "wmt14", "--rows", "baseline,em", "--dry-run", FAIRSEQ_DIVERSE_RUNS=tmp_path)
    assert re.findall(r"^# ([\w-]+) seed (\d): ", chosen, re.MULTILINE) == [
        (row, seed) for row in ("baseline", "em") for seed in "123"
    ]
    for arguments, status, message in (
        (["wmt14", "--dry-run"], 1, "fewer than three systems are finished on IWSLT14"),
        *(([], 2, "usage"), (["wmt14", "--help"], 2, "usage")),
    ):
        said = call("comparison.sh", *arguments, status=status, FAIRSEQ_DIVERSE_RUNS=".")
        assert message in said and "Traceback" not in said


@pytest.mark.parametrize(
    "asked, modern, best",
    [
        ([], {"em": 1.4, "gated": 1.3}, []),
        (["--set", "fp16=true"], {}, []),
        (
            ["--set=fp16=true", "--gpus-of-paper", "1"],
            {"em": 1.4, "gated": 1.3, "alibi": 1.6, "evolving": 1.2},
            ["modern", "modern-evolving", "modern-gated", "modern-em"],
        ),
    ],
)
def test_the_best_three_of_iwslt14_go_on_to_wmt14(asked, modern, best, tmp_path, monkeypatch):
    """Of each baseline with three or more that are finished; what is set is set for both."""
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    folder = tmp_path / "data/iwslt14_de_en"
    folder.mkdir(parents=True)
    (folder / "preprocess.json").write_text(json.dumps(RECORD | {"source": "de", "target": "en"}))
    nll = {"baseline": 2.0, "wider": 1.0, "em": 1.7, "gated": 1.9, "disagreement": 2.1, "evolving": 1.6}
    nll |= {"modern": 1.5} | {f"modern-{row}": value for row, value in modern.items()}
    settings = ["fp16=true"] if asked else []
    rows = load_table("comparison-iwslt14", settings=settings).rows
    for one in find_runs([rows[row] for row in nll], [1], cpu=not torch.cuda.is_available()):
        one.directory.mkdir(parents=True)
        (one.directory / "summary.json").write_text(json.dumps(summary(1, 3, nll[one.row.name])))
    shown = call("comparison.sh", "wmt14", *asked, "--dry-run", "--commands")
    assert re.findall(r"^# ([\w-]+) seed 1: ", shown, re.MULTILINE) == ["baseline", "evolving", "em", "gated", *best]
    assert ("--update-freq 8" in shown) == (len(asked) > 2) and ("--fp16" in shown) == bool(asked)
    assert "not finished on IWSLT14: baseline (1 of 5 seeds), " in shown and "lpea-rhe (0 of 5" in shown


@pytest.mark.slow
def test_a_dry_run_of_the_gpu_check(tmp_path):
    """The tests that need a GPU are collected; rows are trained, translated with and predicted."""
    measures = ("training", "generation", "captured", "captured generation")
    asked = ["--dry-run", "--only", "^(off|em routing encoder:1)$", "--out", tmp_path, "--measure", *measures]
    output = call("gpu-check.sh", *asked, TESTS=SCRIPTS.parent / "tests/model/test_compiled.py")
    assert re.search(r"^\d+ (skipped|passed)", output, re.MULTILINE)
    (data,), (page,) = tmp_path.glob("*.json"), tmp_path.glob("gpu-*.md")
    report = json.loads(data.read_text())
    assert str(data) in output and str(page) in output and page.name == f"gpu-{data.stem}.md"
    assert {"commit", "device", "size", "dry_run"} <= {*report} and report["dry_run"]
    names = [(row["row"], row["measure"]) for row in report["rows"]]
    assert names == [(row, of) for of in measures for row in ("off", "em routing encoder:1")]
    off, routed = report["rows"][:2]
    assert off["predicted"] == {"A100": 1, "H100": 1, "launches": 1} and routed["paper"] == 0.9792
    assert all(0 < speed < 1 for speed in routed["predicted"].values()) and min(routed["seconds"]) > 0
    table = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| em routing")]
    assert [cells[1] for cells in table] == [f"{row['speed']:.3f}" for row in report["rows"][1::2]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_gpu_check_says_before_its_tests_that_there_is_no_gpu(tmp_path):
    said = call("gpu-check.sh", "--out", tmp_path, status=2)
    assert "== tests" not in said and not list(tmp_path.iterdir())
    assert "error: torch sees no CUDA device" in said


def test_a_script_prints_its_usage():
    for name in ("probe", "table", "figure", "train-and-score", "li2021", "zhang2021", "li2022", "wang2021"):
        assert call(f"{name}.sh", "x", status=2).startswith("usage: "), name
    for campaign, pairs in PAIRS.items():
        usage = f"{'RAW' if campaign == 'multi30k' else 'ARCHIVES'} OUT [{pairs}] [FLAG...]"
        for arguments in ([], ["x"], ["x", "out", "en-xx"], ["--help"], ["x", "--workers", 8]):
            said = call(f"../data-prep/prepare-{campaign}.sh", *arguments, status=2).splitlines()[0]
            assert said == f"usage: [TREES=dependency|constituency|both] prepare-{campaign}.sh {usage}"


@pytest.mark.parametrize(("figure", "runs"), [("li2021 3", True), ("li2022 5", True), ("li2022 3", False)])
def test_a_dry_run_of_a_figure_draws_nothing(figure, runs, asked_of, tmp_path):
    asked = asked_of("figure.sh", *figure.split(), "--dry-run", FAIRSEQ_DIVERSE_RUNS=tmp_path)
    assert bool(asked) == runs
    assert all(line.startswith("fairseq-diverse run ") and " --dry-run" in line for line in asked)


def test_a_script_that_scores_says_before_it_starts_that_the_data_are_not_of_prepare(tmp_path):
    for name, arguments in (("train-and-score", (tmp_path, tmp_path / "out")), ("tune-lenpen", (__file__, tmp_path))):
        said = f"{SCRIPTS}/{name}.sh: {tmp_path}: not a folder made by fairseq-diverse prepare\n"
        assert call(f"{name}.sh", *arguments, status=2) == said


def test_a_script_names_a_damaged_record_and_a_missing_file(tmp_path):
    (tmp_path / "preprocess.json").write_text("{")
    for name, file in (
        ("add-trees", "preprocess.json: damaged; prepare"),
        ("prepare-nlu-small", "tatoeba_de-en/train.en: no"),
    ):
        said = call(f"../data-prep/{name}.sh", tmp_path, status=2, FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs")
        assert f"/{name}.sh: {tmp_path}/{file}" in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("asked", "first", "names"),
    [
        ("li2021 5", "6 archives are missing; put into {}/runs/archives:", ["casia2015.zip", "neu2017.zip"]),
        ("li2021 figure4 --raw {}", "{}: lacks train0, train1, ", []),
    ],
)
def test_a_table_says_first_what_must_be_brought_by_hand(tmp_path, asked, first, names):
    words = asked.format(tmp_path).split()
    said = call("table.sh", *words, status=2, FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs").splitlines()
    assert said[0].startswith(f"fairseq-diverse prepare: {first.format(tmp_path)}")
    assert set(names) <= {line.split()[0] for line in said[1:]} and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_table_of_glue_from_a_checkpoint_of_the_users(tmp_path):
    write_task(tmp_path / "glue", "CoLA")
    (tmp_path / "bert").mkdir()
    make_bert(tmp_path / "bert", [*WORDS, '"'])
    cli("convert", tmp_path / "bert", "--out", tmp_path / "converted")
    train = {"arch": "diverse_bert", "max-positions": 32, "optimizer": "adam", "batch-size": 8, "max-update": 1}
    train |= {"encoder-layers": 2, "encoder-embed-dim": 12, "encoder-ffn-embed-dim": 8, "encoder-attention-heads": 3}
    train |= {"task": "sentence_prediction", "criterion": "sentence_prediction"}
    (tmp_path / "size.yaml").write_text(json.dumps({"train": train}))
    row = "bert-base-data=glue-CoLA@bert-lr=1e-05-batch-size=8-max-update=2 epochs"
    checkpoint = tmp_path / "converted/model.pt"
    asked = ["--raw", tmp_path / "glue", "--wordpiece", tmp_path / "converted", "--size", tmp_path / "size.yaml"]
    asked += ["--rows", row, "--set", f"pretrained={checkpoint}"]
    asked += ["--set", "required-batch-size-multiple=1", "--best"]
    plan = call("table.sh", "wang2021", 4, *asked, "--dry-run", "--commands", FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs")
    assert f"\n# {row} seed 1: data glue-CoLA@bert not prepared" in plan and not (tmp_path / "runs").exists()
    assert "--init-token 0" in plan and "--separator-token" not in plan
    lacking = [*asked, "--set", "pretrained=no.pt"]
    refused = call("table.sh", "wang2021", 4, *lacking, status=2, FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs")
    assert "pretrained: no.pt: neither a row of this table nor a checkpoint; give one with --set pretrained=" in refused
    assert not (tmp_path / "runs").exists()
    shown = call("table.sh", "wang2021", 4, *asked, FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs")
    assert re.search(r"^\| CoLA Matthews \| 0.00 \| -?[\d.]+ \| 58.4 \|$", shown, re.MULTILINE)
    assert f"chosen by the dev sets shown here: {row}" in shown
    (log,) = (tmp_path / "runs").glob("glue-CoLA_bert-*/seed1/train.log")
    assert f"loading pretrained model from {checkpoint}" in log.read_text()
    assert '"num_updates": "4"' in log.read_text()  # of 12 examples, not of GLUE's 8,551
    make_bert(tmp_path / "bert", ['"', *WORDS])
    other = [tmp_path / "bert" if word == tmp_path / "converted" else word for word in asked]
    refused = call("table.sh", "wang2021", 4, *other, status=2, FAIRSEQ_DIVERSE_RUNS=tmp_path / "runs")
    assert f"{tmp_path}/runs/data/glue-CoLA@bert" in refused and "--overwrite" in refused
    refused = call("table.sh", "wang2021", 4, *other, status=1, FAIRSEQ_DIVERSE_RUNS=tmp_path / "own")
    assert "the source dictionary has other words, or in another order" in refused


@pytest.mark.slow
def test_multi30k_then_a_length_penalty(tmp_path, raw, size):
    out = tmp_path / "out"
    table = call("multi30k.sh", raw, out, "baseline", SEEDS="1,2", SIZE=size)
    assert re.search(r"^\| baseline \| .* ± .* \| 2 \|$", table, re.MULTILINE)
    checkpoint = next(out.glob("multi30k_en_de-mini-baseline-*/seed2/checkpoints/checkpoint_average.pt"))
    text = call("tune-lenpen.sh", checkpoint, out / "data/multi30k_en_de", -20, 20)
    lengths = dict(re.findall(r"^(lenpen-\S+) .* ([\d.]+)$", text, re.MULTILINE))
    assert float(lengths["lenpen--20.log"]) < float(lengths["lenpen-20.log"]) and len(lengths) == 2
    checkpoint.write_text("")
    said = call("tune-lenpen.sh", checkpoint, out / "data/multi30k_en_de", 1, status=1)
    assert said == f"error: {checkpoint}: empty file; writing the checkpoint was interrupted\n"
    assert "raw/train.cs: cannot be read" in call("multi30k.sh", raw, out, PAIR="en-cs", status=2)


def test_flags_after_the_pair_are_those_of_prepare(tmp_path, raw):
    with (raw / "val.en").open("a") as text, (raw / "val.de").open("a") as other:
        text.write("a\0man\n")
        other.write("ein Mann\n")
    for pair in ([], ["en-de"]):
        said = call("../data-prep/prepare-multi30k.sh", raw, tmp_path / "out", *pair, "--strict", status=2)
        assert "val.en, line 6: a line separator or NUL inside the line" in said
