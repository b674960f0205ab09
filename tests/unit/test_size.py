"""Parameters and FLOPs: the tables of the papers, and counts by hand."""

import json
import re
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY

from fairseq_diverse.analysis.size import build_model, count_flops, count_parameters, measure_size
from fairseq_diverse.cli import main
from fairseq_diverse.models import architectures
from fairseq_diverse.models.systems import ARCHITECTURES
from fairseq_diverse.support.files import read_lines
from fairseq_diverse.testing.models import TINY
from tests import cases
from tests.integration.commands import make_data


def parameters(arch: str = "diverse_transformer", **flags: object) -> int:
    """Parameters without embeddings and softmax layer; nothing is allocated."""
    args = Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    with torch.device("meta"):
        counts = count_parameters(build_model(args, (10, 10)))
    return counts["encoder"] + counts["decoder"]


@pytest.mark.parametrize(
    ("arch", "count", "flops"),
    [("diverse_transformer", 44_138_496, "2.68"), ("diverse_transformer_lite", 2_482_560, "0.15831")],
)
def test_plain_sizes_of_wang_2021_table_5(arch, count, flops):
    size = measure_size(Namespace(arch=arch), 10, 30, 30)
    assert size["parameters"]["without_embeddings"] == count
    decimals = len(flops.split(".")[1])
    assert f"{size['flops']['total'] / 1e9:.{decimals}f}" == flops
    assert size["parameters"]["added"] == size["flops"]["added"] == 0


@pytest.mark.parametrize(
    ("placement", "layers", "published"),
    [("encoder:1-2", 2, 4.2), ("encoder:1-3", 3, 6.3), ("encoder", 6, 12.6), ("encoder,cross", 12, 25.2),
     ("encoder,decoder,cross", 18, 37.8)],
)  # fmt: skip
def test_parameters_of_routing_in_li_2021_tables_3_and_4(placement, layers, published):
    width, heads = 512, 8
    votes = 2 * width + (width * width + width) + (width * heads * width + heads * width)  # LayerNorm, W1, W2
    projection = width * width + width
    added = parameters(routing="em", routing_on=placement) - parameters()
    assert added == layers * (votes + 2 * width - projection)  # 2 * width: beta_A, beta_mu
    assert round(added / 1e6 / layers, 1) == 2.1 and added / 1e6 == pytest.approx(published, abs=0.1)


@pytest.mark.parametrize(("heads", "published"), [(16, 33), (8, 16.8)])
def test_parameters_of_routing_at_big(heads, published):
    plain = parameters("diverse_transformer_big", encoder_attention_heads=heads)
    added = parameters("li2021_aggregation_big", encoder_attention_heads=heads) - plain
    width = 1024
    assert added == 2 * (2 * width + width * heads * width + heads * width + 2 * width)
    assert added / 1e6 == pytest.approx(published, rel=0.02)


def test_parameters_of_relative_positions_and_localness():
    """Zhang et al. (2021), Base: relative positions in six encoder layers; localness +0.8M (WMT14), +0.02M (WMT16)."""
    assert parameters(relative_on="encoder") - parameters() == 6 * 4224
    assert parameters(localness_on="encoder:1-3") - parameters() == 812_592
    assert parameters(localness_on="encoder:1-3", localness_form="shared") - parameters() == 12_672


@pytest.mark.parametrize(("arch", "added"), [("zhang2021_dea", 0), ("zhang2021_lpea", 5056)])
def test_parameters_of_syntax(arch, added):
    size = measure_size(Namespace(arch=f"{arch}_tiny"), 10, 30, 30)["parameters"]
    assert parameters(arch) - parameters() == added and (size["added"] > 0) == (added > 0)


@pytest.mark.parametrize(
    ("arch", "count", "flops"),
    [("wang2021_evolving", 44_149_008, 2.70e9), ("wang2021_evolving_lite", 2_485_224, 163.46e6)],
)
def test_evolving_sizes_of_wang_2021_table_5(arch, count, flops):
    size = measure_size(Namespace(arch=arch), 10, 30, 30)
    plain = measure_size(Namespace(arch=arch.replace("wang2021_evolving", "diverse_transformer")), 10, 30, 30)
    assert size["parameters"]["without_embeddings"] == count
    assert size["flops"]["total"] == pytest.approx(flops, rel=0.01)
    added = count - plain["parameters"]["without_embeddings"]
    assert size["parameters"]["added"] == added
    heads, cells = (4, 30 * 30) if arch.endswith("lite") else (8, 30 * 30)
    convolutions = 18 * cells * heads * 2 * heads * 3 * 3
    shares = (18 + 5) * cells * heads * 4  # a x + (1 - a) y: of every convolution, and of five maps carried
    assert size["flops"]["added"] == size["flops"]["total"] - plain["flops"]["total"] == convolutions + shares


@pytest.mark.parametrize(
    ("size", "symbols", "published", "added"),
    [
        ("", 30_522, 109.5, 12 * (144 * 9 + 12)),  # BERT-Base
        ("_large", 30_522, 335.0, 24 * (256 * 9 + 16)),  # BERT-Large
        ("_large", 50_265, 355.0, 24 * (256 * 9 + 16)),  # RoBERTa-Large
    ],
)
def test_plain_parameters_of_wang_2021_table_3(monkeypatch, size, symbols, published, added):
    """What evolving attention adds is not what the table has; docs/deviations.md says so."""
    monkeypatch.setattr("fairseq_diverse.analysis.size.count_flops", lambda *_: {"encoder": 0})
    for module in ("fairseq_diverse.models.roberta", "fairseq.models.roberta.model"):
        monkeypatch.setattr(f"{module}.init_bert_params", lambda _: None)  # it needs values
    with torch.device("meta"):
        found = measure_size(Namespace(arch=f"wang2021_evolving_roberta{size}"), symbols, 30)["parameters"]
    assert (found["classifier"] - found["added"]) / 1e6 == pytest.approx(published, abs=0.4) and found["added"] == added
    width = 1024 if size else 768
    words = width * width + width + 2 * width + symbols  # the layer before the softmax, its norm, one bias a symbol
    assert found["total"] - words == found["classifier"] - (width * width + width)
    assert found["encoder"] == found["without_embeddings"]
    assert found["total"] - words == found["encoder"] + width * (symbols + 514)  # 512 positions after the padding's


def test_size_of_a_t5(monkeypatch, capsys):
    monkeypatch.setattr("fairseq_diverse.analysis.size.count_flops", lambda *_: {"encoder": 0, "decoder": 0})
    with torch.device("meta"):
        found = measure_size(Namespace(arch="wang2021_evolving_t5"), 32_128, 30)["parameters"]
    tables, convolutions = 2 * 32 * 12, 36 * (144 * 9 + 12)
    assert found["added"] == tables + convolutions and found["total"] == 222_903_552 + convolutions
    flags = "--arch diverse_t5_tiny --t5-version 1.1 --head-width 5 --vocabulary 9 --json"
    assert main(["size", *flags.split()]) == 0
    layers = 2 * (4 * 10 * 64 + 3 * 64 * 64 + 2 * 64) + 2 * (8 * 10 * 64 + 3 * 64 * 64 + 3 * 64)
    total = json.loads(capsys.readouterr().out)["parameters"]["total"]
    assert total == layers + 2 * 64 + 2 * 32 * 2 + 2 * 9 * 64  # norms at the end, tables, embeddings and output


def test_size_of_a_language_model(error_of, output_of):
    flags = "--encoder-embed-dim 24 --encoder-ffn-embed-dim 20 --encoder-attention-heads 4 --pooler-dropout 0.1"
    command = ["size", "--arch", "wang2021_evolving_roberta_tiny", *flags.split(), "--source-length", "7"]
    size = json.loads(output_of(*command, "--vocabulary", "9", "--json"))
    s, d, layers, heads = 7, 24, 2, 4
    layer = 4 * s * d * d + 2 * s * s * d + 2 * s * d * 20 + 2 * s * d + s * d  # ..., 2 norms, scaled queries
    # beside the layers: embeddings (times 1), their norm, zeroed padding, position numbers
    plain = 2 * (layers * layer + 2 * s * d + (s + s * d) + s)
    convolutions, shares = layers * s * s * heads * 2 * heads * 9, (2 * layers - 1) * s * s * heads * 4
    added = convolutions + shares
    assert size["flops"] == {"encoder": plain + added, "total": plain + added, "added": added}
    assert "target_length" not in size and size["widths"] == {"encoder": d}
    shown = output_of(*command)
    assert "FLOPs (7 tokens)" in shown and "decoder" not in shown and "  with BERT's pooler for LM head" in shown
    for wrong, message in (
        (["--target-length", "3"], "--target-length 3: wang2021_evolving_roberta_tiny reads one sentence"),
        (["--data", "."], "--data: sentence pairs are for translation, not for wang2021_evolving_roberta_tiny"),
        (["--max-positions", "6"], "--source-length 7: from 1 to 6 (--max-positions)"),
        (["--evolving-on", "decoder"], "--evolving-on 'decoder': this model has no decoder attention"),
    ):
        assert message in error_of(*command, *wrong)


def test_parameters_of_heads():
    """Li and Luo (2022): concatenated pairs of heads at Base, and nothing when they are summed."""
    added = {heads: 18 * (heads - 1) * 512**2 for heads in (8, 16)}
    assert [round(count / 1e6, 1) for count in added.values()] == [33.0, 70.8]
    for heads, expected in added.items():
        flags = {"encoder_attention_heads": heads, "decoder_attention_heads": heads}
        assert parameters("li2022_interacting", **flags) - parameters(**flags) == expected
        assert parameters("li2022_interacting", interacting="sum", **flags) == parameters(**flags)
    assert parameters("li2022_talking") - parameters() == 18 * 128
    assert parameters(talking="logits", talking_on="cross") - parameters() == 6 * 64
    assert parameters(qk_head_dim=20) - parameters() == 18 * 2 * (512 + 1) * (8 * 20 - 512)


def test_flops_by_hand():
    model = cases.build_model().eval()
    s, t, d = 7, 5, 24
    encoder_layer = 4 * s * d * d + 2 * s * s * d + 2 * s * d * 20 + 2 * s * d + s * d  # ..., 2 norms, scaled queries
    self_attention, cross_attention = 4 * t * d * d + 2 * t * t * d, 2 * (t + s) * d * d + 2 * t * s * d
    decoder_layer = self_attention + cross_attention + 2 * t * d * 28 + 3 * t * d + 2 * t * d
    # beside the layers: scaled embeddings, zeroed padding, and position numbers, which are zero at padding
    encoder = 2 * (2 * encoder_layer + s * d + (s + s * d) + s)
    expected = {"encoder": encoder, "decoder": 2 * (3 * decoder_layer + t * d + t)}
    assert count_flops(model, s, t) == expected


@pytest.mark.parametrize("key_width", [0, 7])
@pytest.mark.parametrize("combine", ["concat", "sum"])
@pytest.mark.parametrize(
    ("component", "layer"), [("encoder", 1), ("decoder", 1), ("cross", 1), ("cross", TINY["decoder_layers"])]
)
def test_flops_of_interacting_heads_by_hand(component, layer, combine, key_width):
    """H - 1 times more products than plain attention, and with concat H - 1 times more output projections."""
    flags = {"qk_head_dim": key_width, "qk_head_dim_on": component}
    plain = cases.build_model(flags).eval()
    model = cases.build_model({**flags, "interacting": combine, "interacting_on": f"{component}:{layer}"}).eval()
    s, t, d, heads = 7, 5, 24, 4
    queries, keys = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}[component]
    pairs = 2 * queries * keys * (heads * (key_width or d // heads) + d)
    more = queries * d if combine == "sum" else 2 * queries * (heads - 1) * d * d
    # if widths differ, torch itself scales queries and keys
    scaling = 2 * heads * (heads * queries + keys) * key_width
    scaling += 0 if combine == "sum" else 2 * keys * d  # values / H
    added = sum(count_flops(model, s, t).values()) - sum(count_flops(plain, s, t).values())
    assert added == (heads - 1) * pairs + (2 if combine == "sum" else 1) * more + scaling


def test_a_mechanism_is_counted_in_full():
    flags = {"encoder_embed_dim": 64, "decoder_embed_dim": 64, "encoder_attention_heads": 4}
    args = Namespace(arch="diverse_transformer_tiny", routing="em", routing_on="encoder:2", **flags)
    size = measure_size(args, 20, 6, 3)
    votes = 2 * 6 * 64 * (4 * 64)
    assert votes < size["flops"]["added"] < 1.3 * votes
    assert size["parameters"]["added"] == 2 * 64 + 4 * (64 * 64 + 64) + 2 * 64


def test_the_vocabulary_counts_in_the_total_only():
    shared = {"arch": "diverse_transformer_tiny", "share_all_embeddings": True}
    small, large = (measure_size(Namespace(**shared), n, 3, 3)["parameters"] for n in (10, 25))
    assert large["total"] - small["total"] == 15 * 64
    assert small["total"] == small["without_embeddings"] + 10 * 64
    assert large["without_embeddings"] == small["without_embeddings"] == small["encoder"] + small["decoder"]


def test_every_model_flag_reaches_the_model(output_of):
    flags = "--arch diverse_transformer_tiny --routing simple --routing-on cross:1 --json --vocabulary 9"
    flags += " --encoder-layers 3"
    size = json.loads(output_of("size", *flags.split()))
    expected = parameters("diverse_transformer_tiny", routing="simple", routing_on="cross:1", encoder_layers=3)
    assert size["parameters"]["without_embeddings"] == expected and size["vocabulary"] == 9
    assert f"{expected:,}" in output_of("size", *flags.replace("--json", "").split())


def test_a_row_of_a_table_is_measured(output_of):
    """With its size and its flags, of which the user may change some."""
    sizes = []
    for more in ([], ["--evolving-on", "", "--evolving-carry", "0.2", "--evolving-conv", "0.1"]):
        sizes.append(json.loads(output_of("size", "comparison", "--row", "evolving", "--json", *more))["parameters"])
    assert sizes[0]["added"] > 0 == sizes[1]["added"] and sizes[0]["encoder"] > sizes[1]["encoder"]
    assert json.loads(output_of("size", "comparison", "--row", "baseline", "--json"))["parameters"] == sizes[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("comparison", "--row: which row of comparison? baseline, wider, "),
        ("comparison --row all", "--row: no row all in comparison; rows: baseline"),
        ("comparison --row em,baseline", "--row em,baseline: one row at a time"),
        ("--row em", "which model? Give --arch ARCH, or TABLE --row ROW"),
        ("wang2021-table1 --row aa-resnet-34", "--arch resnet-34: unknown; known are diverse_transformer"),
        ("--arch transformer_huge", "--arch transformer_huge: unknown; known are diverse_transformer, "),
        ("--arch diverse_transformer_tiny --vocabulary 3", "--vocabulary 3: at least 5"),
        ("--arch diverse_transformer_tiny --vocabulary 0", "--vocabulary 0: at least 5"),
        ("--arch diverse_transformer_tiny --source-length 0", "--source-length 0: from 1 to 1024"),
        ("--arch diverse_transformer_tiny --target-length 2000", "--target-length 2000: from 1 to 1024"),
        ("--arch diverse_transformer_tiny --target-length 0", "--target-length 0: from 1 to 1024"),
        ("--arch diverse_transformer_tiny --encoder-embed-dim 63", "--encoder-attention-heads 2: must divide the"),
        ("--arch diverse_transformer_tiny --routing em --routing-on encoder:9", "--routing-on 'encoder:9': layer 9"),
    ],
)
def test_user_errors_are_one_line(flags, message, error_of):
    assert message in error_of("size", *flags.split())


def test_the_architectures_that_are_known_before_fairseq_is():
    own = {name for name, size in ARCH_CONFIG_REGISTRY.items() if size.__module__ == architectures.__name__}
    known = {name for name in own if not re.match("li2021_(logic|probing)|.*_rationales", name)}
    assert len(ARCHITECTURES) > 50 and {*ARCHITECTURES} == known


def test_how_many_heads_the_training_sentences_allow(tmp_path, capsys, error_of, output_of):
    data = make_data(tmp_path, end=" w1 w1")
    lengths = [[len(line.split()) for line in read_lines(tmp_path / f"train.{side}")] for side in ("en", "de")]
    source, target = (sum(side) / len(side) for side in lengths)
    widths = ["--encoder-embed-dim", "4", "--decoder-embed-dim", "64"]
    command = ["size", "--arch", "diverse_transformer_tiny", *widths, "--data", str(data)]
    size = json.loads(output_of(*command, "--json"))
    symbols = 4 + len(read_lines(data / "dict.en.txt"))
    assert size["vocabulary"] == symbols
    found = size["data"]
    most = int(64 // source)
    expected = {"sentences": len(lengths[0]), "source": source, "target": target}
    expected["heads"] = {"encoder": [], "decoder": [count for count in range(1, most + 1) if 64 % count == 0]}
    assert found == {**expected, "h_max": {"encoder": 0, "decoder": most}}
    with (data / "dict.de.txt").open("a") as dictionary:
        dictionary.write("more 1\nstill-more 1\n")
    assert main(command) == 0 and f"total, {symbols} and {symbols + 2} symbols" in capsys.readouterr().out
    picture = tmp_path / "lengths.png"
    assert main(["plot", "lengths", "--data", str(data), "--out", str(picture)]) == 0
    shown, longest = capsys.readouterr().out, max(len(line.split()) for line in read_lines(tmp_path / "train.en"))
    assert f"to {longest} tokens, mean {source:.2f}\n" in shown and picture.stat().st_size > 5000
    reversed_direction = json.loads(output_of(*command, "--source-lang", "de", "--target-lang", "en", "--json"))["data"]
    assert (reversed_direction["source"], reversed_direction["target"]) == (target, source)
    for side in ("bin", "idx"):  # a second shard of the same sentences, twice
        for language in ("en", "de"):
            shutil.copy(data / f"train.en-de.{language}.{side}", data / f"train1.en-de.{language}.{side}")
    shown = output_of(*command)
    assert f"{2 * len(lengths[0])} training pairs, mean length {source:.2f} and {target:.2f} tokens" in shown
    assert f"h_max = floor(64 / {source:.2f}) = {most}; " in shown
    assert f"h_max = floor(4 / {source:.2f}) = 0; numbers of heads up to it that divide the width: none" in shown
    for directory, message in ((tmp_path / "none", "no such file or folder"), (tmp_path, "no training split")):
        assert f"--data {directory}: {message}" in error_of(*command[:-1], directory)
