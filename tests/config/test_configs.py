"""Every table and size: it parses, fairseq's own parsers accept its rows, each flag reaches its field."""

import ast
import functools
import json
import re
from pathlib import Path
from statistics import fmean

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_diverse import register
from fairseq_diverse.cli import main
from fairseq_diverse.data.plain import PLAIN_DATA
from fairseq_diverse.experiments.kinds import images
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.run import DataSet, Row, Run
from fairseq_diverse.experiments.runs import provenance
from fairseq_diverse.experiments.runs.environment import AVX2
from fairseq_diverse.experiments.runs.plan import steps_of
from fairseq_diverse.experiments.tables.load import Table, load_table
from fairseq_diverse.preparation import eraser
from fairseq_diverse.preparation.glue import split_name
from fairseq_diverse.support.paths import config_names
from tests.integration.commands import parse_settings_once

register()

TABLES = config_names("tables")
DECIDING = ("task", "criterion", "optimizer", "lr-scheduler")  # which other flags there are


def covering(parts: dict[str, set]) -> list[str]:
    """Few of the names whose parts are together those of all."""
    chosen, missing = [], set().union(*parts.values())
    while missing:
        chosen.append(max(parts, key=lambda name: len(parts[name] & missing)))
        missing -= parts[chosen[-1]]
    return chosen


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return {name: load_table(name) for name in TABLES}


@pytest.fixture(scope="module")
def rows(tables) -> dict[str, Row]:
    """Of every grid the first."""
    return {f"{name}:{row.family}": row for name in TABLES for row in reversed(tables[name].rows.values())}


def rows_with_every_flag(rows: dict[str, Row]) -> list[str]:
    """Rows in which every flag occurs in every kind of row, and every choice of what decides about flags."""
    flags = {}
    for name, row in sorted((name, row) for name, row in rows.items() if kind_of(row).fairseq):
        flags[name] = {(kind_of(row).name, flag) for flag in (*row.train, *row.generate)}
        flags[name] |= {(flag, row.train.get(flag)) for flag in DECIDING}
    return covering(flags)


@functools.cache  # rows that translate alike share it
def configuration(arguments: tuple[str, ...], training: bool):
    parse_settings_once()
    parser = options.get_training_parser() if training else options.get_generation_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=list(arguments)))


def typed(value):
    """A command-line value with the type that fairseq's configuration may give it."""
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (SyntaxError, ValueError):
        return value


def reached(config, flag: str, value) -> bool:
    """Whether a section of fairseq's configuration, or the model, has the flag's value."""
    if flag in ("arch", "criterion", "optimizer", "lr-scheduler", "task"):
        section = {"arch": config.model, "lr-scheduler": config.lr_scheduler}.get(flag) or getattr(config, flag)
        return (section.arch if flag == "arch" else section._name) == value
    found = [getattr(section, flag.replace("-", "_"), None) for _, section in config.items()]
    lists = [[typed(part) for part in x] for x in found if hasattr(x, "__iter__") and not isinstance(x, str)]
    return [typed(value)] in lists or any(x == value or typed(x) == typed(value) for x in found if x is not None)


def test_each_flag_of_a_row_reaches_its_field(rows, tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").write_text("word 1\n")
    data, lost = DataSet("data", tmp_path, "en", "de", hash="0"), []
    for name in rows_with_every_flag(rows):
        row = rows[name]
        commands = steps_of(Run(row, 1, data, cpu=True, directory=data.path / "run"), {})
        config = configuration(tuple(commands["train"][3:]), training=True)
        lost += [(name, flag) for flag, value in row.train.items() if not reached(config, flag, value)]
        assert config.common.seed == 1 and config.checkpoint.save_interval_updates > 0
        for step in () if kind_of(row).name != "translation" else ("generate", "reference"):
            config = configuration(tuple(commands[step][3:]), training=False)
            assert config.generation.score_reference == (step == "reference")
            assert config.dataset.required_batch_size_multiple == 1
            if step == "generate":
                lost += [(name, flag) for flag, value in row.generate.items() if not reached(config, flag, value)]
    assert not lost


@pytest.mark.parametrize("name", TABLES)
def test_a_dry_run_prints_the_commands_of_every_row(name, tables, output_of, tmp_path, monkeypatch):
    """And so fairseq's parser and the models take them, with every placement in its size. Of a grid with thousands of
    rows, some that have every value."""
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    every = {row.name: {*row.train.items(), *row.generate.items()} for row in tables[name].rows.values()}
    rows = covering(every) if len(every) > 100 else every
    shown = output_of("run", name, "--dry-run", "--commands", "--rows", ",".join(rows))
    trained = shown.count("fairseq_cli.train ") + shown.count("examples.images.run ")
    assert trained == shown.count("\n# ") and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("drop-out=0.3", "fairseq-train: no flag --drop-out for this architecture, task and criterion; nearest:"),
        ("max_update=3", "fairseq-train: no flag --max_update for .*; nearest: --max-update"),
        ("dropuot=null", "fairseq-train: no flag --dropuot for .*; nearest: --dropout"),
        ("rotray-on=false", "fairseq-train: no flag --rotray-on for .*; nearest: --rotary-on"),
        ("generate.beem=3", "fairseq-generate: no flag --beem for .*; nearest: --beam"),
        ("arch=transfomer", r"fairseq-train: argument --arch/-a: invalid choice: 'transfomer' .nearest: transformer, "),
        ("localness-form=x", r"fairseq-train: argument --localness-form: invalid choice: 'x' .choose from '?heads'?,"),
        ("routing=emm", r"fairseq-train: argument --routing: invalid choice: 'emm' .nearest: em"),
        ("warmup-updates=many", "fairseq-train: argument --warmup-updates: invalid int value: 'many'"),
        ("lr=many", "fairseq-train: argument --lr: "),
        ("save-async=true", "fairseq-train: --save-async: `fairseq-diverse run` sets this flag by itself"),
        ("fp16=3", "fairseq-train: --fp16 takes no value such as 3"),
        ("lr=true", "fairseq-train: argument --lr: expected one argument"),
        ("disagreement=output", ".*; it belongs to --criterion label_smoothed_cross_entropy_with_disagreement\n"),
        ("syntax=phrase", "syntax needs constituency trees: add task: translation_with_syntax"),
        ("enliven=enliven", "--enliven-on 'encoder:1': encoder:1 has no mechanism to enliven its heads with"),
        ("encoder-attention-heads=3", "--encoder-attention-heads 3: must divide the width"),
        ("help=true", "fairseq-train: would show its help only"),
    ],
)
def test_flags_unknown_to_fairseq_are_found_before_anything_starts(capsys, tmp_path, monkeypatch, setting, problem):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    monkeypatch.setattr("fairseq_diverse.experiments.runs.schedule.run_all", lambda *_: pytest.fail("started"))
    found = DataSet("toy", tmp_path / "d", "en", "de", "h")
    monkeypatch.setattr("fairseq_diverse.experiments.runs.find.find_data", lambda name, dry, root: found)
    assert main(["run", "toy", "--rows", "aggregation,baseline", "--set", setting]) == 2
    shown = capsys.readouterr()
    assert not shown.out and re.search(f"^fairseq-diverse run: toy: row aggregation: {problem}", shown.err)
    assert shown.err.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("table", "setting", "problem"),
    [
        ("toy", "disagreement-on=encoder:9", "disagreement: --disagreement-on 'encoder:9': layer 9 of encoder is out"),
        ("toy", "arch=transformer", "disagreement: --arch: disagreement needs a model that measures its heads"),
        ("nlu-small", "evolving-on=decoder", "plain-pretraining: --evolving-on 'decoder': this model has no decoder"),
        ("nlu-small", "syntax=phrase", "plain-pretraining: --syntax, --enliven: the sentences of a language model"),
        ("li2021-figure4", "talking-on=cross", "baseline: --talking-on 'cross': this model has no cross attention"),
        ("li2021-table7", "syntax=phrase", "baseline-probe=.*: --syntax, --enliven: the sentences of this task have"),
    ],
)
def test_what_a_model_refuses_is_found_before_anything_starts(capsys, tmp_path, monkeypatch, table, setting, problem):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    rows = ["--rows", "disagreement"] if table == "toy" else []
    more = ["--set", "talking=both"] if "talking" in setting else []
    assert main(["run", table, "--dry-run", *rows, *more, "--set", setting]) == 2
    shown = capsys.readouterr()
    assert re.search(f"^fairseq-diverse run: {table}: row {problem}", shown.err)
    assert not shown.out and shown.err.count("\n") == 1


def test_an_invalid_number_of_threads_or_jobs_is_refused(error_of, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    assert "--jobs 0" in error_of("run", "toy", "--jobs", 0)
    for text in ("x", "-1", "0", "4,2"):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert f"OMP_NUM_THREADS={text}: a number of threads above 0 expected" in error_of("run", "toy", "--dry-run")


def test_variables_set_by_the_user_are_kept(capsys, tmp_path, monkeypatch):
    for name, value in {"FAIRSEQ_DIVERSE_RUNS": str(tmp_path), "MALLOC_MMAP_MAX_": "7", "OMP_NUM_THREADS": "3"}.items():
        monkeypatch.setenv(name, value)
    assert main(["run", "toy", "--rows", "baseline", "--dry-run", "--commands"]) == 0
    first = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("OMP"))
    assert first.startswith("OMP_NUM_THREADS=3 MKL_NUM_THREADS=3 MALLOC_TRIM_THRESHOLD_=") and "MMAP" not in first


def test_the_same_arithmetic(error_of, output_of, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    asked = ["run", "toy", "--rows", "baseline", "--dry-run", "--commands", "--same-arithmetic"]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "--same-arithmetic: needs OMP_NUM_THREADS=1, not 2 threads" in error_of(*asked)
    monkeypatch.delenv("OMP_NUM_THREADS")
    shown = output_of(*asked)
    assert all(f" {name}={value} " in shown for name, value in {**AVX2, "MKL_NUM_THREADS": "1"}.items())
    machine = provenance.collect({"OMP_NUM_THREADS": "1", **AVX2})["machine"]
    assert machine["capability"] == "AVX2" and machine["threads"] == 1
    assert machine["variables"]["MKL_CBWR"] == "AVX2" and machine["cpu"] == provenance.processor()


def test_the_data_sets_of_all_rows_are_known(rows):
    known = {*config_names("data"), *PLAIN_DATA, *images.KNOWN}
    for name in {row.data for row in rows.values()} - known:
        _, encoding = split_name(name) or eraser.split_name(name)
        assert encoding in ("", "bert", "t5", *known), name


def test_every_size_trains_the_same_rows():
    others = {"wang2021_rationales", "gnmt", "convs2s"}  # no translation, or no attention
    for size in {*config_names("size")} - others:
        rows = load_table("multi30k", size=size).rows
        baseline, other = rows["baseline"].train, rows["disagreement"].train
        differing = {flag for flag, value in other.items() if baseline.get(flag) != value}
        assert differing == {"criterion", "disagreement", "disagreement-on", "disagreement-weight"}, size
        assert all(row.size == size and row.max_update > 0 for row in rows.values()), size


def test_equal_rows_of_two_tables_are_one_run():
    first, second = load_table("li2021-table1").rows, load_table("li2021-table2").rows
    assert first["baseline"].key("hash") == second["baseline"].key("hash")
    assert first["output"].key("hash") == second["encoder"].key("hash")
    assert len({row.key("hash") for row in first.values()}) == len(first)


def test_every_row_of_the_comparison_is_one_of_its_three_trials():
    """The best of them, once they are run; and its baseline is that of table multi30k in this size, with which the
    comparison's plan begins. Every other number of heads has its control."""
    tuning, compared = (dict(load_table(name).rows) for name in ("comparison-tuning", "comparison"))
    heads = ("encoder-attention-heads", "decoder-attention-heads")
    numbers = {row.train[heads[0]] for name, row in compared.items() if not name.startswith("baseline-")} - {"4"}
    for n in numbers:
        assert compared.pop(f"baseline-{n}-heads").train == compared["baseline"].train | dict.fromkeys(heads, n)
    assert "30k" not in load_table("comparison", data="toy").title  # which is above runs on other data, too
    trials: dict[str, list[Row]] = {}
    for name, trial in tuning.items():
        system = max((s for s in compared if f"{name}-".startswith(f"{s}-")), key=len)
        trials.setdefault(system, []).append(trial)
    assert {name: len(found) for name, found in trials.items()} == dict.fromkeys(compared, 3)
    size = load_table("multi30k", size="converged").rows["baseline"]
    nll = {
        file.name.partition("-seed")[0]: fmean(json.loads(file.read_text())["test_nll"])
        for file in (Path(__file__).parents[2] / "results/comparison/tuning").glob("*-seed9.json")
    }
    for name, row in compared.items():
        finished = all(trial.name in nll for trial in trials[name])
        best = min(trials[name], key=lambda trial: nll[trial.name]) if finished else trials[name][0]
        assert row.train | {"max-update": "2000"} == best.train, name
        assert (row.generate, row.lenpen, row.average) == (size.generate, size.lenpen, size.average)
    lr = tuning["baseline"].train["lr"]  # which the pilot has
    assert compared["baseline"].key("h") == size.key("h") or compared["baseline"].train["lr"] != lr
    assert len({trial.key("h") for trial in tuning.values()}) == len(tuning)
    assert {trial.split for trial in tuning.values()} == {"valid"}


def test_a_flag_that_another_row_or_criterion_has_may_be_off_everywhere(output_of):
    for table, flag in (("comparison", "disagreement"), ("nlu-small", "mask-prob")):
        assert output_of("run", table, "--set", f"{flag}=null", "--dry-run").startswith("to do: ")


def test_carry_or_convolution_is_tested_with_all_rows_of_the_comparison():
    tables = (load_table(f"comparison{more}").rows.values() for more in ("", "-carry"))
    compared, carried = ({row.name: row.train for row in rows} for rows in tables)
    added = {
        "realformer": {"residual-logits-on": "encoder,decoder,cross"},
        "carry": {"evolving-on": "encoder", "evolving-carry": "0.4", "evolving-conv": "0"},
        "convolution": {"evolving-on": "encoder,decoder,cross", "evolving-carry": "0", "evolving-conv": "0.4"},
    }
    assert carried == compared | {name: compared["baseline"] | flags for name, flags in added.items()}


def test_every_row_of_the_modern_comparison_is_the_best_of_its_three_trials():
    tuning, compared = (load_table(f"comparison-modern{x}").rows for x in ("-tuning", ""))
    folder = Path(__file__).parents[2] / "results/comparison/modern-tuning"
    for name, row in compared.items():
        files = {trial: folder / f"{trial}-seed9.json" for trial in tuning if f"{trial}-".startswith(f"{name}-")}
        nll = {trial: fmean(json.loads(file.read_text())["test_nll"]) for trial, file in files.items()}
        assert len(nll) == 3
        assert row.train | {"max-update": "2000"} == tuning[min(nll, key=lambda trial: nll[trial])].train, name


def test_differences_from_the_paper_are_noted_under_the_table(output_of):
    assert "288M parameters of routing do not follow" in output_of("report", "li2021-table6")
