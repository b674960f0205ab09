"""The benchmark harness: sides alternate, ratios and intervals are right, naive versions compute the same."""

import contextlib
import json
import math
import multiprocessing
import random
import re
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import __main__ as command
from benchmarks import half_types, harness, long, naive, parsing, peer, peers, sides
from fairseq_diverse.attention.functional import agreement, routing
from fairseq_diverse.attention.mechanisms.routing import RoutedAggregation
from fairseq_diverse.syntax.parsers import KINDS
from tests.integration.test_parse import MODELS, needs_models

QUICK = sides.SIZES["quick"]


def test_sides_alternate_and_are_built_again_in_turn():
    events = []

    def maker(name):
        def make():
            events.append(f"make {name}")
            return lambda: events.append(name) or float(len(events))

        return make

    done = []
    samples = harness.alternate(maker("a"), maker("b"), pairs=5, warm_up=1, blocks=2, done=lambda: done.append(1))
    assert events == ["make a", "make b", "a", "b", *"ab", *"ba", "make b", "make a", "a", "b", *"ab", *"ba", *"ab"]
    assert samples == [(5, 6), (8, 7), (13, 14), (16, 15), (17, 18)]  # without the warm-up of each block
    assert len(done) == 5


def test_interval_of_the_median():
    values = [float(x) for x in range(1, 31)]
    random.Random(1).shuffle(values)
    assert harness.median_interval(values) == (10, 21, pytest.approx(0.9572, abs=1e-4))  # tabulated for n = 30
    assert harness.median_interval([3.0, 1.0, 2.0]) == (1, 3, 0.75)
    assert harness.median_interval([2.0]) == (2, 2, 0)


@pytest.mark.parametrize(("seconds", "expected"), [(True, 0.5), (False, 2.0)])
def test_ratio_of_synthetic_samples_under_drift(monkeypatch, seconds, expected):
    calls = iter(range(10_000))
    noise = random.Random(3)

    def sampler(name, size, device):
        cost = {"twice": 2.0, "once": 1.0}[name]
        return lambda: cost * (1 + 0.01 * next(calls)) * noise.uniform(0.98, 1.02) if seconds else cost

    monkeypatch.setitem(command.MEASURES, "made up", command.Measure(sampler, seconds))
    row = command.Row("made up", "twice", "once")
    result = command.measure(row, "quick", QUICK, "cpu", 40, command.tqdm(disable=True))
    assert result["ratio"] == pytest.approx(expected, abs=0.01)
    if seconds:
        low, high, coverage = result["interval"]
        assert low <= 0.5 <= high and high - low < 0.02 and coverage >= 0.95
        assert len(result["ratios"]) == 40
    else:
        assert result["interval"] is None and result["ratios"] == [2.0]


def test_kept_for_backward_counts_each_storage_once_and_no_parameter():
    x, linear = torch.randn(7, 3), nn.Linear(3, 5)
    assert harness.kept_for_backward(lambda: linear(x).exp(), linear) == 4 * (7 * 3 + 7 * 5)

    def twice():
        y = linear(x).exp()
        return y.exp() * y.view(5, 7).t().exp().view_as(y)

    # x and the result of each exp; y once despite two views, the others once though the product keeps them too
    assert harness.kept_for_backward(twice, linear) == 4 * (7 * 3 + 3 * 7 * 5)


def test_recomputed_maps_take_less_memory(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["long", "--lengths", "256", "--pairs", "1"])
    monkeypatch.setattr(long, "NAMES", ("off", "talking"))
    long.main()
    *_, off, talking = (line.split(" | ") for line in capsys.readouterr().out.splitlines())
    assert (off[1], talking[1]) == ("off", "talking") and float(talking[3]) < float(talking[2])


def test_the_table_of_half_types_has_what_was_trained(tmp_path, capsys):
    (tmp_path / "preprocess.json").touch()
    asked = ["--data", str(tmp_path), "--table", "--only", "talking|rotary"]
    assert not half_types.main(asked) and re.findall(r"^\| (\w+) \|", capsys.readouterr().out, re.M) == ["talking"]


def test_naive_agreement_is_the_same_function():
    torch.manual_seed(0)
    valid = torch.tensor([[True] * 5, [True, True, True, False, False]])
    vectors, maps = torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 7).softmax(-1)
    torch.testing.assert_close(naive.cosine_agreement(vectors, valid), agreement.output_agreement(vectors, valid))
    torch.testing.assert_close(naive.position_agreement(maps, valid), agreement.position_agreement(maps, valid))


@pytest.mark.parametrize("width", [1, 2])
def test_naive_routing_is_the_same_function(width):
    torch.manual_seed(0)
    votes, beta_a, beta_u = torch.randn(3, 4, 6, width), torch.randn(6), torch.randn(6)
    torch.testing.assert_close(naive.simple_routing(votes), routing.simple_routing(votes))
    torch.testing.assert_close(naive.em_routing(votes, beta_a, beta_u), routing.em_routing(votes, beta_a, beta_u))


def test_talking_heads_of_x_transformers_are_the_same_function():
    ours, attend = sides.talking_attention("talking", QUICK)
    theirs, call = sides.talking_attention("x-transformers", QUICK)
    identity = torch.eye(QUICK.heads)
    with torch.no_grad():
        for projection, other in (("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v"), ("out_proj", "to_out")):
            getattr(theirs, other).weight.copy_(getattr(ours, projection).weight)
            getattr(ours, projection).bias.zero_()
        for matrix in ours.talking.parameters():
            matrix.copy_(torch.randn(QUICK.heads, QUICK.heads))
        theirs.attend.pre_softmax_talking_heads.weight.copy_((ours.talking.before - identity)[..., None, None])
        theirs.attend.post_softmax_talking_heads.weight.copy_(ours.talking.after[..., None, None])
    x, valid = torch.randn(2, 5, QUICK.width), torch.tensor([[True] * 5, [False, False, True, True, True]])
    torch.testing.assert_close(attend(x, valid)[valid], call(x, valid)[valid])


def test_routing_in_torch_has_the_parameters_of_a_routed_attention():
    in_torch = sides.build_model(sides.SIDES["torch routing encoder"], QUICK)
    routed = sides.build_model(sides.SIDES["em routing encoder"], QUICK)
    replaced = [name for name, module in in_torch.named_modules() if isinstance(module, naive.Aggregation)]
    assert replaced == [name for name, module in routed.named_modules() if isinstance(module, RoutedAggregation)]
    assert len(replaced) == QUICK.layers
    assert sum(p.numel() for p in in_torch.parameters()) == sum(p.numel() for p in routed.parameters())


def test_both_sides_translate_to_the_same_tokens_of_fixed_length(monkeypatch):
    monkeypatch.setattr(sides, "timed", lambda action, device: action)
    ours, theirs = (sides.generation(name, QUICK, "cpu")() for name in ("off", "fairseq"))
    for mine, other in zip(ours, theirs, strict=True):
        assert len(mine) == 5
        for a, b in zip(mine, other, strict=True):
            assert len(a["tokens"]) == QUICK.steps + 1
            assert torch.equal(a["tokens"], b["tokens"])


def test_every_row_names_a_side_and_its_torch_reference_comes_before():
    assert len(set(command.ROWS)) == len(command.ROWS)
    for number, row in enumerate(command.ROWS):
        known = sides.FUNCTIONS if row.measure.startswith("function") else sides.SIDES
        if row.measure == "parsing":
            known = [f"{name}{who}" for name in parsing.BATCHES for who in ("", " alone")]
        assert {row.ours, row.reference} <= {*known, *(["x-transformers"] if row.measure == "attention" else [])}
        earlier = {(other.measure, other.ours) for other in command.ROWS[:number]}
        assert not row.torch or (row.measure, row.torch) in earlier


def test_table_and_saved_file(tmp_path, capsys):
    pattern = "function: output|^memory: off|generation: off|layer: (torch|em)"
    assert command.main(["--quick", "--only", pattern, "--pairs", "6", "--save", "trial"], results=tmp_path) == 0
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert path.name == "cpu-trial.json"
    assert {"commit", "versions", "device", "threads", "clock", "pairs", "interval"} <= set(report)
    rows = {f"{row['measure']}: {row['ours']}": row for row in report["rows"]}
    assert 0.9 < rows["memory: off"]["ratio"] < 1  # fairseq keeps a mask for each head
    assert len(rows["layer: em routing encoder:1"]["ratios"]) == 6
    table = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| quick")]
    assert len(table) == len(rows) == 5
    shown = {cells[0].removeprefix("| quick ").strip(): [cell.strip() for cell in cells] for cells in table}
    assert shown["layer: em routing encoder:1"][5] == f"{rows['layer: torch routing encoder:1']['ratio']:.3f}"
    assert shown["memory: off"][-1].endswith(" MB |")


TABLE = (
    "data: d\nsize: tiny\nrows:\n  baseline:\n  narrow: {qk-head-dim: 4, decoder-attention-heads: 2}\n"
    "  apart: {criterion: label_smoothed_cross_entropy_with_disagreement, disagreement: output}\n"
)


def test_rows_of_a_table_are_built_from_their_flags(tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "SIDES", sides.SIDES)
    file = tmp_path / "mine.yaml"
    file.write_text(TABLE)
    assert command.main(["--quick", "--pairs", "1", "--table", str(file), "--save", "mine"], results=tmp_path) == 0
    rows = json.loads((tmp_path / "cpu-mine.json").read_text())["rows"]
    assert [(row["size"], row["measure"], row["ours"], row["reference"]) for row in rows] == [
        ("mine", measure, row, "baseline")
        for measure in ("training", "memory", "generation")
        for row in ("narrow", "apart")
    ]
    narrow = sides.build_model(sides.SIDES["narrow"], QUICK)
    assert [len(narrow.encoder.layers), len(narrow.decoder.layers)] == [2, 2]  # of size tiny
    assert narrow.decoder.layers[0].self_attn.num_heads == 2
    memory = {row["ours"]: row["ratio"] for row in rows if row["measure"] == "memory"}
    assert memory["narrow"] < 1 < memory["apart"]


def test_a_row_of_a_table_may_have_a_mechanism_of_ones_own(tmp_path):
    file = tmp_path / "mine.yaml"
    folder = Path("examples/temperature").absolute()
    file.write_text(f"user-dir: {folder}\n{TABLE}  own: {{temperature-on: encoder}}\n")

    def measure() -> None:
        with (tmp_path / "printed").open("w") as printed, contextlib.redirect_stdout(printed):
            sys.exit(command.main(["--quick", "--pairs", "1", "--table", str(file), "--only", "memory: own"]))

    process = multiprocessing.get_context("fork").Process(target=measure)  # which registers the mechanism
    process.start()
    process.join()
    assert process.exitcode == 0
    assert (tmp_path / "printed").read_text().splitlines()[-1].startswith("| mine memory: own ")


@pytest.mark.parametrize("name", peer.PEERS)
def test_peers_are_the_same_model_and_take_as_many_steps(name):
    side = peer.PEERS[name]
    if find_spec(side.module) is None:
        pytest.skip(f"{side.module} is not installed")
    fairseq = sum(parameter.numel() for parameter in sides.build_model(sides.SIDES["fairseq"], QUICK).parameters())
    for measure in side.measures:
        parameters, action = peer.prepare(Namespace(**peers.job(measure, name, QUICK)))
        assert parameters == pytest.approx(fairseq, rel=0.04)  # x-transformers has fewer biases
        if measure == peer.DECODING:
            assert action() == [QUICK.steps + 1] * QUICK.sentences
        else:
            assert action() == pytest.approx(math.log(QUICK.words + 4), rel=0.6)  # nats per token, before training


def test_peers_are_measured_in_processes_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "ROWS", [])
    monkeypatch.setattr(command, "MEASURES", dict(command.MEASURES))
    options = ["--quick", "--pairs", "1", "--only", "search: (off|eole)", "--save", "peers"]
    with pytest.raises(SystemExit):
        peers.main([*options, "--python", f"eole={sys.executable}"], results=tmp_path)
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].startswith("| quick beam search: off ")
    assert shown.err.splitlines()[-1].endswith("error: eole: ModuleNotFoundError: No module named 'eole'")
    (row,) = json.loads((tmp_path / "cpu-peers.json").read_text())["rows"]
    assert (row["ours"], row["reference"], len(row["ratios"])) == ("off", "fairseq", 1)


@pytest.mark.parametrize("given", ["joeynmt=nowhere", "nothing=python", "python"])
def test_a_python_for_no_peer_is_refused(given, capsys):
    with pytest.raises(SystemExit):
        peers.main(["--python", given])
    assert f"error: --python {given}: must be NAME=PATH" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "nowhere"], "--table: nowhere: no such file, and not one of configs/tables"),
        (["--pairs", "5"], "--pairs 5: at least 30"),
        (["--only", "nothing"], "--only 'nothing': matches no row"),
        (["--save", "../x"], "--save '../x'"),
        (["--tokens", "0"], "--tokens 0: at least 32"),
        (["--only", "parsing"], "--only 'parsing': needs --spacy-model MODEL and --benepar-model MODEL"),
        (["--quick", "--only", "parsing", "--spacy-model", "nowhere"], "--model nowhere: spaCy cannot load it"),
    ],
)
def test_bad_flags_are_refused_in_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.integration
def test_every_row_runs(capsys):
    assert command.main(["--quick", "--pairs", "1", "--only", "^(?!host)|host .*(: host off|talking everywhere)"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("| quick") == len([row for row in command.ROWS if not row.ours.startswith("host ")]) - 2
    hosts = [line.split(" | ") for line in shown.splitlines() if line.startswith("| host ")]
    assert [cells[0].removeprefix("| host ").strip() for cells in hosts] == [
        *("training: off", "decoding: off", "training: talking everywhere", "decoding: talking everywhere")
    ]
    assert all("; operators " in cells[-1] for cells in hosts)
    assert "skipped: parsing: spacy needs --spacy-model MODEL" in shown


@needs_models
def test_parsing_rows(capsys):
    models = [f"--{name}-model={MODELS[kind]}" for kind, name in KINDS.items()]
    assert command.main(["--quick", "--pairs", "1", "--only", "parsing", *models]) == 0
    assert capsys.readouterr().out.count("| quick parsing") == 2
