"""examples/images: attention-augmented ResNets on generated pictures."""

import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from fairseq_diverse.attention import MECHANISMS, UserError
from fairseq_diverse.experiments.kinds.images import SIZES as ATTENTION
from fairseq_diverse.reports.learning_curves import read_training
from tests.integration.commands import cli

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "images"
# Wang et al. (2021), Table 1: parameters in millions
PUBLISHED = {
    **{("34", "none"): 21.8, ("34", "augmented"): 20.7, ("34", "evolving"): 20.7},
    **{("50", "none"): 25.6, ("50", "augmented"): 25.8, ("50", "evolving"): 25.8},
    **{("101", "none"): 44.5, ("101", "augmented"): 45.4, ("101", "evolving"): 45.4},
    **{("152", "none"): 60.2, ("152", "augmented"): 61.6, ("152", "evolving"): 61.6},
}


@pytest.fixture(scope="module", autouse=True)
def images():
    """The example's modules; its mechanism is registered for the tests of this file only."""
    from examples.images import classify_maps, data, maps, model, report, train

    MECHANISMS.setdefault("pixel-offsets", model.PixelOffsets)
    yield SimpleNamespace(classify_maps=classify_maps, data=data, maps=maps, model=model, report=report, train=train)
    del MECHANISMS["pixel-offsets"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Two classes that differ in brightness: 12 pictures for training, 6 held out."""
    folder, draws = tmp_path_factory.mktemp("pictures"), random.Random(1)
    for split, count in (("train", 6), ("test", 3)):
        for label, name in enumerate(("dark", "light")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = bytes(draws.randrange(100) + 150 * label for _ in range(32 * 32 * 3))
                Image.frombytes("RGB", (32, 32), pixels).save(folder / split / name / f"{number}.png")
    return folder


def run(images, data: Path, out: Path, *flags: str) -> dict:
    """A training of two epochs of three updates; the checkpoint."""
    images.train.main([*f"--data {data} --out {out} --size tiny --epochs 2 --batch 4 --workers 0".split(), *flags])
    return torch.load(out / "checkpoint.pt")


def test_training_and_maps_need_torch_and_pillow_alone(pictures, tmp_path):
    program = f"""
import sys
sys.modules |= dict.fromkeys(("numpy", "scipy", "sklearn", "fairseq", "omegaconf", "matplotlib", "torchvision"))
from examples.images import maps, train
train.main("--data {pictures} --out {tmp_path} --size tiny --batch 4 --epochs 1 --workers 0".split())
maps.main("--data {pictures} --checkpoint {tmp_path}/checkpoint.pt --out {tmp_path}/maps.png".split())
"""
    subprocess.run([sys.executable, "-c", program], cwd=FOLDER.parents[1], check=True)
    assert (tmp_path / "result.json").exists() and (tmp_path / "maps.png").exists()


@pytest.mark.parametrize(("size", "attention"), PUBLISHED)
def test_parameters_are_those_of_table_1(images, size, attention):
    with torch.device("meta"):
        model = images.model.ResNet(size, 1000, attention, **({"conv": "1.0"} if attention == "evolving" else {}))
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert abs(millions - PUBLISHED[size, attention]) < (0.06 if size == "152" else 0.05)


OF_50 = [*range(12, 22, 3), *range(24, 40, 3), 42, 45, 48]


@pytest.mark.parametrize(("size", "layers"), [("34", [*range(8, 34)]), ("50", OF_50)])
def test_shapes_at_224_pixels(images, size, layers):
    model, maps = images.model.ResNet(size, 7).eval(), {}
    with torch.no_grad():
        assert model(torch.randn(1, 3, 224, 224), maps).shape == (1, 7)
    assert list(maps) == layers
    last_stage = layers[-6 if size == "34" else -3 :]
    for layer, weights in maps.items():
        pixels = 7 * 7 if layer in last_stage else 14 * 14
        assert weights.shape == (1, 8, pixels, pixels)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 8, pixels))


def augmented_by_loops(conv, x: torch.Tensor) -> torch.Tensor:
    """One picture (channels, side, side): concat(Conv(x), W_O attention(x)); logits of Wang et al., Eqs. 2-3."""
    attention, side = conv.attention, x.size(-1)
    heads, offsets = attention.num_heads, attention.pixel_offsets
    q, k, v = (
        torch.stack([project(x[:, i // side, i % side]) for i in range(side**2)]).view(side**2, heads, -1)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    out = torch.zeros(side**2, heads, v.size(-1))
    for h in range(heads):
        for i in range(side**2):
            logits = []
            for j in range(side**2):
                down, right = j // side - i // side, j % side - i % side
                by_row, by_column = (offsets.vectors[n, d + side - 1] for n, d in enumerate((down, right)))
                logits.append(q[i, h] @ k[j, h] / q.size(-1) ** 0.5 + q[i, h] @ by_row + q[i, h] @ by_column)
            out[i, h] = torch.stack(logits).softmax(0) @ v[:, h]
    attended = attention.out_proj(out.flatten(1)).t().unflatten(1, (side, side))
    return torch.cat([F.conv2d(x[None], conv.conv.weight, padding=1)[0], attended])


def test_an_augmented_convolution_equals_loops(images):
    size = images.model.Size((1,), heads=2, key_share=0.5, value_share=0.5, least_keys=3)
    conv = images.model.AugmentedConv(5, 8, 1, 4, size, {}, 2)
    x = torch.randn(2, 5, 4, 4)
    with torch.no_grad():
        got, carry = conv(x, {}, None)
        torch.testing.assert_close(got, torch.stack([augmented_by_loops(conv, picture) for picture in x]))
    assert carry == {} and conv.attention.q_proj.out_features == 6 and conv.attention.embed_dim == 4


def test_the_map_before_counts_if_it_has_the_same_resolution(images):
    size = images.model.Size((1,), heads=2, key_share=0.5, value_share=0.5)
    conv = images.model.AugmentedConv(5, 8, 1, 4, size, {"evolving": {"carry": 0.5, "conv": "1.0"}}, 2)
    x = torch.randn(2, 5, 4, 4)
    first, carry = conv(x, {}, None)
    other, _ = conv(x, {"evolving": torch.randn(2, 2, 9, 9)}, None)
    assert torch.equal(first, other) and carry["evolving"].shape == (2, 2, 16, 16)
    assert not torch.allclose(conv(x, {"evolving": torch.randn(2, 2, 16, 16)}, None)[0], first)


def test_without_carry_and_convolution_it_is_the_augmented_network(images):
    torch.manual_seed(1)
    plain = images.model.ResNet("tiny", 3, "augmented")
    off = images.model.ResNet("tiny", 3, "evolving", carry=0.0, conv="0")
    off.load_state_dict(plain.state_dict())
    on = images.model.ResNet("tiny", 3, "evolving", carry=0.5, conv="1.0")
    assert not on.load_state_dict(plain.state_dict(), strict=False).unexpected_keys
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(off(x), plain(x)) and not torch.allclose(on(x), plain(x))
    assert not any("attention" in key for key in images.model.ResNet("tiny", 3, "none").state_dict())


@pytest.mark.parametrize("attention", ["none", "augmented", "evolving"])
def test_every_parameter_has_a_gradient(images, attention):
    model = images.model.ResNet("tiny", 3, attention)
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and (parameter.grad.any() or name.endswith("k_proj.bias")), name


def test_two_updates_then_resumed_equal_one_training(images, pictures, tmp_path):
    """Interrupted within an epoch and at its end."""
    expected = run(images, pictures, tmp_path / "a")
    for update in ("2", "3"):
        stopped = run(images, pictures, tmp_path / "b", "--stop-at", update)
        assert stopped["update"] == int(update) and not (tmp_path / "b/result.json").exists()
    got = run(images, pictures, tmp_path / "b")
    assert got["epochs"] == expected["epochs"] and [epoch["epoch"] for epoch in got["epochs"]] == [1, 2]
    torch.testing.assert_close(got["model"], expected["model"], rtol=0, atol=0)
    result = json.loads((tmp_path / "b/result.json").read_text())
    assert result["epochs"] == got["epochs"] and result["pictures"] == [12, 6]
    assert all(0 <= epoch["top1"] <= epoch["top5"] == 100 for epoch in got["epochs"])
    with pytest.raises(UserError, match=r"checkpoint\.pt was made with seed 1, not 2; give another --out"):
        run(images, pictures, tmp_path / "b", "--seed", "2")
    others = shutil.copytree(pictures, tmp_path / "others")
    assert run(images, others, tmp_path / "b")["epochs"] == expected["epochs"]  # the same in another folder
    Image.new("RGB", (32, 32)).save(others / "train/dark/5.png")
    with pytest.raises(UserError, match=r"checkpoint\.pt was made with other pictures than those of .*others; give"):
        run(images, others, tmp_path / "b")
    del got["settings"]
    torch.save(got, tmp_path / "b/checkpoint.pt")
    with pytest.raises(UserError, match=r"not a checkpoint of this program \(KeyError\)"):
        run(images, pictures, tmp_path / "b")
    (tmp_path / "b/checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(UserError, match="damaged, or not a checkpoint"):
        run(images, pictures, tmp_path / "b")


@pytest.mark.slow
def test_it_learns_in_mixed_precision(images, pictures, tmp_path):
    epochs = run(images, pictures, tmp_path, "--amp", "--epochs", "12", "--batch", "12", "--lr", "2")["epochs"]
    assert epochs[-1]["training_loss"] < 0.2 < 0.6 < epochs[0]["training_loss"] and epochs[-1]["top1"] == 100


@pytest.fixture(scope="module")
def checkpoints(images, pictures, tmp_path_factory) -> dict[str, Path]:
    """Of one update, by attention."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for attention in ("none", "augmented", "evolving"):
        run(images, pictures, folder / attention, "--attention", attention, "--stop-at", "1")
    return {path.name: path / "checkpoint.pt" for path in folder.iterdir()}


def test_the_maps_of_three_layers_are_drawn(images, pictures, checkpoints, tmp_path):
    words = ["--data", pictures, "--pictures", 2, "--out", tmp_path / "maps.png", "--checkpoint"]
    images.maps.main([*map(str, words), *(str(checkpoints[attention]) for attention in ("augmented", "evolving"))])
    with Image.open(tmp_path / "maps.png") as sheet:
        assert sheet.format == "PNG" and sheet.size == (7 * 120, 24 + 2 * 120)
        cells = [sheet.crop((120 * n, 24, 120 * n + 112, 136)) for n in range(7)]
    assert len({cell.tobytes() for cell in cells}) == 7


def test_checkpoints_and_layers_without_maps_are_refused(images, pictures, checkpoints, tmp_path):
    def refused(program, message, checkpoint, *flags):
        words = f"--data {pictures} --checkpoint {checkpoint}".split()
        words += ["--workers", "0", "--layers", "10"] if program is images.classify_maps else ["--out", "x.png"]
        with pytest.raises(UserError, match=message):
            program.main([*words, *flags])

    plain, augmented, other = checkpoints["none"], checkpoints["augmented"], tmp_path / "other.pt"
    refused(images.maps, r"none/.*: a plain ResNet, or of another program: no attention to draw", plain)
    refused(images.maps, r"--layers 2: .* has attention in layers 6, 7, 8, 9, 10, 11, 12", augmented, "--layers", "2")
    evolving = {"attention": "evolving"}
    for change in {"settings": evolving}, {"settings": 3}, {"classes": 3}, {"model": {"x": 1}}, {"model": 1}:
        torch.save(torch.load(augmented) | change, other)
        refused(images.maps, r"other\.pt: missing, damaged, or not a checkpoint of this program \(", other)
    refused(images.classify_maps, r"a plain ResNet, or of another program: it has no maps", plain)
    refused(images.classify_maps, "--layers 2,10: there is attention in layers 6, 7, 8", augmented, "--layers", "2,10")
    others = shutil.copytree(pictures, tmp_path / "others")
    (others / "test/light").rename(others / "test/grey")
    refused(images.classify_maps, r"other classes than those of .*\.pt", augmented, "--data", str(others))


def test_saved_accuracies_are_of_one_checkpoint_and_seed(images, pictures, checkpoints, tmp_path, capsys):
    """Layers that the file has are not done again; of another seed, or a network trained further, it is refused."""
    saved, checkpoint = tmp_path / "maps.json", shutil.copy(checkpoints["augmented"], tmp_path / "network.pt")
    words = f"--data {pictures} --checkpoint {checkpoint} --workers 0 --layers 10 --save {saved}".split()
    images.classify_maps.main(words)
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"10": 12.5}))
    images.classify_maps.main(words)
    assert capsys.readouterr().out.endswith("\nlayer 10: 12.50% of 6 pictures\n")
    images.classify_maps.main([*words, "--layers", "10,10"])
    assert capsys.readouterr().out == "layer 10: 12.50% of 6 pictures\n"
    whole, says = saved.read_text(), r"maps\.json: damaged, or of another checkpoint, --data or --seed; delete it, or"
    with pytest.raises(UserError, match=says):
        images.classify_maps.main([*words, "--seed", "2"])
    more = shutil.copytree(pictures, tmp_path / "more")
    shutil.copy(more / "test/dark/0.png", more / "test/dark/9.png")
    with pytest.raises(UserError, match=says):
        images.classify_maps.main([*words, "--data", str(more)])
    for content in ("{", "[1]", '{"10": 99.0}'):
        saved.write_text(content)
        with pytest.raises(UserError, match=says):
            images.classify_maps.main(words)
    saved.write_text(whole)
    torch.save(torch.load(checkpoint) | {"epochs": []}, checkpoint)
    with pytest.raises(UserError, match=says):
        images.classify_maps.main(words)


def test_bad_folders_are_one_line(images, pictures, tmp_path):
    def error(*flags: str) -> str:
        with pytest.raises(UserError) as caught:
            run(images, tmp_path, tmp_path / "out", *flags)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "train/CLASS: 0 such folders; at least 2 are needed" in error()
    (tmp_path / "train/cat").mkdir(parents=True)
    (tmp_path / "train/dog").mkdir()
    assert "cat: no pictures" in error()
    for name in ("train/cat", "train/dog", "val/cat", "val/fox"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "1.jpg").write_bytes(b"no picture")
    assert "the classes of training differ" in error()
    (tmp_path / "val/fox").rename(tmp_path / "val/dog")
    assert "2 pictures fill no batch" in error()
    for workers in ("0", "1"):
        line = error("--batch", "2", "--workers", workers)
        assert re.fullmatch(r"--data: .*\.jpg: cannot be read as a picture \(.*\)", line)
    assert "--epochs 0: must be 1 or above" in error("--epochs", "0")
    assert "--evolving-kernel 2: must be odd" in error("--batch", "1", "--evolving-kernel", "2")


def test_the_learning_rate_is_that_of_the_paper(images):
    epochs = {1: 0.128 / 5, 5: 0.128, 29: 0.128, 30: 0.0128, 60: 0.00128, 80: 0.000128, 90: 0.0000128, 100: 0.0000128}
    for epoch, expected in epochs.items():
        assert images.train.rate(epoch / 100, 0.128) == pytest.approx(expected)


def test_processes_share_the_pictures_of_an_update(images):
    def batches(batch, rank, world, first=0, epoch=1):
        return list(images.data.training_batches(29, epoch, 1, batch, rank, world, first))

    alone, pair = batches(6, 0, 1), [batches(3, rank, 2) for rank in (0, 1)]
    assert [one + other for one, other in zip(*pair, strict=True)] == alone and len(alone) == 4
    assert len({number for batch in alone for _, number in batch}) == 24
    assert batches(6, 0, 1, first=3) == alone[3:] and batches(6, 0, 1, epoch=2) != alone


def test_pixels_keep_their_place_and_pictures_their_class(images, pictures):
    held_out = images.data.Pictures(pictures, 32)
    for number, (path, label) in enumerate(held_out.files):
        found, given = held_out[1, number]
        pixel = Image.open(path).getpixel((9, 5))
        assert found[:, 5, 9].tolist() == list(pixel) and given == label == (path.parent.name == "light")
        expected = [(pixel[0] / 255 - 0.485) / 0.229, (pixel[2] / 255 - 0.406) / 0.225]  # of red and blue
        assert images.data.normalize(found[None])[0, ::2, 5, 9].tolist() == pytest.approx(expected, abs=1e-5)


def test_the_table_has_means_and_a_test(images, tmp_path):
    assert images.report.table(tmp_path).startswith("Not run yet")
    for kind, scores in (("augmented", (70, 71, 72)), ("evolving", (72, 73, 74))):
        for seed, top in enumerate(scores):
            result = {"settings": {"attention": kind, "seed": seed, "size": "tiny"}, "parameters": 1234, "seconds": 90}
            (tmp_path / f"{kind}-{seed}.json").write_text(json.dumps(result | {"epochs": [{"top1": top, "top5": 99}]}))
    text = images.report.table(tmp_path)
    assert "| evolving | 1,234 | 72.00, 73.00, 74.00 | 73.00 | 1.00 | 99.00 | 2 |" in text
    # t = 2 / sqrt(2 / 3) with 4 degrees of freedom: p = 0.0705; 2.776 sqrt(2 / 3) = 2.27
    assert "+2.00 points, 95% interval -0.27 to +4.27, p = 0.070" in text


def test_the_readme_has_the_table_of_the_results_and_commands_that_parse(images, tmp_path):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    table = images.report.table(FOLDER / "results")
    assert f"<!-- results -->\n{table}<!-- end -->" in text
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    lines = blocks.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines if "examples.images.train" in line]
    assert len(commands) >= 2
    for words in commands:
        images.train.arguments(words[words.index("examples.images.train") + 1 :])
    (tmp_path / "runs/images/results").mkdir(parents=True)
    (tmp_path / "runs/images/results/evolving-1.json").touch()
    (copy,) = (line for line in lines if "cp " in line)
    subprocess.run(["bash", "-ec", copy], cwd=tmp_path, check=True)
    assert (tmp_path / "examples/images/results/evolving-1.json").exists()


def test_maps_are_those_of_the_pixel_in_the_middle(images, pictures):
    model, maps = images.model.ResNet("tiny", 2, "evolving", conv="1.0").eval(), {}
    held_out = images.data.Pictures(pictures, 32)
    found = images.classify_maps.maps_of(model, held_out, [10, 12], 0, torch.device("cpu"))
    with torch.no_grad():
        model(images.data.normalize(torch.stack([held_out[0, number][0] for number in range(6)])), maps)
    for layer, given in found.items():
        assert given.shape == (6, 4, 8, 8) and layer in (10, 12)
        for picture in range(6):
            for head in range(4):
                row = [maps[layer][picture, head, 8 * 4 + 4, pixel].item() for pixel in range(64)]
                expected = [weight / max(row) for weight in row]
                assert given[picture, head].flatten().tolist() == pytest.approx(expected, abs=1e-3)


def test_the_network_for_maps_learns_what_they_show(images):
    """Two classes, whose maps are bright on one side."""
    network = images.classify_maps.MapsClassifier(8, 5)
    assert network(torch.randn(2, 8, 14, 14)).shape == (2, 5)
    assert [x.out_channels for x in network if isinstance(x, torch.nn.Conv2d)] == [32, 64, 64]
    torch.manual_seed(1)
    labels = torch.arange(120) % 2
    maps = torch.rand(120, 2, 8, 8) / 2
    maps[labels == 1, :, :, :4] += 0.5
    sets = [(maps[part].half(), labels[part]) for part in (slice(90), slice(90, 120))]
    assert images.classify_maps.accuracy(*sets, 2, 1, torch.device("cpu")) > 90
    assert images.classify_maps.accuracy(sets[0], (sets[1][0], 1 - sets[1][1]), 2, 1, torch.device("cpu")) < 10


TABLE = """
title: Pictures
data: {data}
size: {folder}/size.yaml
rows:
  augmented: {{published: {{top1: 74.33, parameters: 20.7M, map-16: 24.5}}}}
  evolving: {{attention: evolving, evolving-conv: 0.5}}
"""
SIZE = """
train: {task: images, arch: resnet-tiny, attention: augmented, batch: 4, workers: 0, max-update: 6}
generate: {map-layers: "10,11"}
"""


@pytest.fixture
def table(pictures, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    (tmp_path / "size.yaml").write_text(SIZE)
    (tmp_path / "table.yaml").write_text(TABLE.format(data=pictures, folder=tmp_path))
    return str(tmp_path / "table.yaml")


def test_a_table_of_pictures(images, pictures, table, tmp_path, output_of):
    shown = cli("run", table).stderr
    assert re.search(r"evolving seed 1: top-1 [\d.]+, top-5 100.00, maps of layer 10 [\d.]+, maps of layer 11 ", shown)
    assert re.search(r"train \d/6 updates, loss [\d.]+(;|$)", shown, re.MULTILINE) and "words/s" not in shown
    for kind in ("augmented", "evolving"):
        (folder,) = (tmp_path / "runs").glob(f"*-{kind}-*/seed1")
        summary = json.loads((folder / "summary.json").read_text())
        result = run(images, pictures, tmp_path / kind, "--attention", kind, "--evolving-conv", "0.5")
        assert summary["top1"] == result["epochs"][-1]["top1"] and summary["updates"] == 6
        logged = read_training(folder)
        assert logged.training.losses == [round(epoch["training_loss"], 4) for epoch in result["epochs"]]
        assert logged.validation.losses == [round(epoch["loss"], 4) for epoch in result["epochs"]]
        buffers = ("running_mean", "running_var", "num_batches_tracked")
        parameters = [value for name, value in result["model"].items() if not name.endswith(buffers)]
        assert summary["parameters"] == sum(value.numel() for value in parameters)
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint_last.pt"]
        saved = torch.load(folder / "checkpoints/checkpoint_last.pt")["model"]
        torch.testing.assert_close(saved, result["model"], rtol=0, atol=0)
    lines = json.loads(output_of("report", table, "--format", "json"))["rows"]
    assert lines[1]["top1"] == summary["top1"] and lines[1]["map-11"] == summary["maps"]["11"]
    page = output_of("report", table, "--format", "html")
    assert "Accuracy by number of parameters" in page and "published top-1" in page
    verdicts = output_of("report", table, "--verdict", "--format", "markdown")
    assert "| mechanism | against | data | seeds | Δ top-1 | verdict |" in verdicts
    for flags in ([], ["--verdict"], ["--x", "attention"]):
        picture = tmp_path / "rows.svg"
        assert output_of("plot", "rows", table, *flags, "--out", picture) == f"{picture}\n"
        assert b"<svg" in picture.read_bytes()
    failed = cli("run", table, "--set", "max-update=5", "--rows", "augmented", fails=1).stderr
    assert "--max-update 5: not a number of whole epochs; one has 3 updates of 4 pictures" in failed
    shutil.copytree(pictures, tmp_path / "others")
    Image.new("RGB", (32, 32)).save(tmp_path / "others/test/dark/0.png")
    assert output_of("run", table, "--dry-run").count(": done, ") == 2
    assert output_of("run", table, "--dry-run", "--data", tmp_path / "others").count(": new, ") == 2
    page = output_of("report", table, "--format", "html", "--data", tmp_path / "others")
    assert "Accuracy by number of parameters" not in page  # published on other pictures


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("arch=resnet-35", "row augmented: arch: resnet-35; known: resnet-34, resnet-50, "),
        ("attention=all", "row augmented: attention: all: none or augmented or evolving expected"),
        ("lr=high", "row augmented: lr: high: a number expected"),
        ("batch=0.5", "row augmented: batch: 0.5: a whole number expected"),
        ("epochs=3", "row augmented: unknown key epochs; known: "),
        ("attension=null", "row augmented: unknown key attension; known: attention, "),
        ("generate.map-layers='10, 99'", "map-layers: 10, 99: numbers of layers expected, joined by commas"),
        ("generate.map-layers='5,13,14'", "map-layers: 5,14: resnet-tiny has attention in layers 6 to 13"),
        ("arch=resnet-50", "map-layers: 10,11: resnet-50 has attention in layers 12 to 48, every third"),
        ("attention=none", "row augmented: map-layers: without attention there are no maps; set map-layers: null"),
        ("generate.lenpen='[1, 2]'", "row augmented: generate: unknown key lenpen; known: map-layers"),
        ("attention=null", "row augmented: attention: none or augmented or evolving expected"),
        ("generate.beam=3", "row augmented: generate: unknown key beam; known: map-layers"),
    ],
)
def test_what_a_table_of_pictures_cannot_have_is_named(setting, problem, table, error_of):
    assert problem in error_of("run", table, "--dry-run", "--rows", "augmented", "--set", setting)


def test_networks_for_pictures_have_no_average(table, error_of):
    said = error_of("run", table, "--dry-run", "--set", "average.last=1", "--set", "average.every=1")
    assert "average: networks for pictures leave one checkpoint, so there is no average" in said


def test_tables_know_the_layers_that_have_attention(images):
    for size in images.model.SIZES:
        modules = images.model.ResNet(size, 2, "augmented").modules()
        assert [one.layer for one in modules if isinstance(one, images.model.AugmentedConv)] == [*ATTENTION[size]]
    assert ATTENTION.keys() == images.model.SIZES.keys()


def test_pictures_that_are_missing_are_one_line(table, tmp_path, error_of):
    for words in (["run", "wang2021-table7"], ["run", "wang2021-table7", "--prepare"]):
        said = "data set imagenet is missing; put ImageNet's pictures, by hand from https://image-net.org"
        assert said in error_of(*words)
    (tmp_path / "runs/data/imagenet/train").mkdir(parents=True)
    (tmp_path / "runs/data/imagenet/val").mkdir()
    assert "imagenet/train/CLASS: 0 such folders; at least 2 are needed" in error_of("run", "wang2021-table7")
