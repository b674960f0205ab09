"""What a GPU would run, counted on fake CUDA tensors: by hand, within limits, as the pages say."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from benchmarks import gpu_check, gpu_model, scaling
from benchmarks import gpu_rows as rows
from benchmarks.fake_cuda import fake_cuda, move
from benchmarks.gpu_counting import Counting, count_generation
from fairseq_diverse.attention.kernels import cpu, launching
from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import Measurement
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.testing.properties import where_placed
from tests.cases import ALL_ON, CASES, build_model, first_of_each, terms

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "results"
COUNTED_WITH = json.loads(gpu_model.RESULTS.read_text(encoding="utf-8"))["torch"].partition("+")[0]
reason = f"the figures are of the operators of torch {COUNTED_WITH}"
with_its_torch = pytest.mark.skipif(torch.__version__.partition("+")[0] != COUNTED_WITH, reason=reason)

# The most that one attention of Base may cost, forward and backward: launches; MB moved and MB kept for the backward
# pass, with 128 sentences of 32 tokens, and with 8 of 512. Lower them where a kernel gets better.
LIMITS = {
    "off": (40, 330, 25, 1260, 137), "em routing": (49, 570, 61, 593, 65), "simple routing": (46, 566, 61, 589, 65),
    "dependency": (39, 266, 22, 290, 26), "phrase": (84, 287, 24, 640, 46),
    "phrase, enlivened": (114, 407, 26, 2400, 90), "pruning": (61, 325, 22, 969, 22),
    "relative": (71, 486, 31, 2490, 143), "localness": (103, 713, 50, 3700, 211),
    "localness of heads": (111, 724, 51, 3660, 210), "rotary": (80, 445, 22, 468, 26), "alibi": (44, 279, 24, 728, 55),
    "position bias": (54, 273, 24, 660, 59), "qk-norm": (97, 973, 64, 996, 68),
    "synthesizer dense": (74, 397, 36, 1870, 179), "residual logits": (49, 329, 25, 1510, 137),
    "value residual": (50, 352, 26, 375, 30), "query width 20": (57, 393, 28, 1640, 173),
    "talking": (57, 390, 28, 2300, 175), "interacting concat": (36, 448, 49, 470, 51),
    "interacting sum": (34, 240, 19, 261, 21), "evolving": (59, 390, 29, 2300, 195),
    "differential": (103, 812, 53, 849, 61), "gated head": (54, 343, 27, 366, 31),
    "gated element": (53, 457, 39, 480, 43), "disagreement subspace": (42, 283, 22, 306, 26),
    "disagreement position": (53, 359, 26, 1920, 148), "disagreement output": (43, 291, 22, 314, 26)
}  # fmt: skip


@pytest.fixture(scope="module")
def counted():
    """Every attention of Base."""
    return rows.count("base .* attention")


@pytest.fixture(scope="module")
def kept():
    """The figures of the pages."""
    return gpu_model.read()


def exceeded(variant, counted):
    """What of an attention's cost is above its limits."""
    problems = []
    for name, _, component in rows.attentions():
        if name == f"{variant} {component}":
            short, long = (counted[f"base {length} attention: {name}"] for length in (32, 512))
            figures = [rows.total(short, "launches")]
            figures += [x for its in (short, long) for x in (rows.total(its, "bytes") / 1e6, its["kept"] / 1e6)]
            what = ("launches", "MB, T = 32", "MB kept, T = 32", "MB, T = 512", "MB kept, T = 512")
            for of, figure, limit in zip(what, figures, LIMITS[variant], strict=True):
                problems += [f"{name}: {figure:,.0f} {of}, at most {limit:,}"] if figure > limit else []
    return problems


def test_every_mechanism_is_modelled():
    missing = rows.not_modelled()
    assert not missing, f"{missing}: add a line to VARIANTS and a row to ROWS in benchmarks/gpu_rows.py"
    unlimited = {*rows.VARIANTS, *(f"disagreement {term}" for term in rows.TERMS)} ^ {*LIMITS}
    assert not unlimited, f"{unlimited}: add to LIMITS what python -m benchmarks.gpu_model --only attention prints"
    assert {*rows.VARIANTS} == {row.variant for row in rows.ROWS}


@pytest.mark.slow
@pytest.mark.parametrize("variant", LIMITS)
def test_no_attention_costs_more_than_it_may(variant, counted):
    assert not exceeded(variant, counted)


@pytest.mark.slow
def test_nothing_in_an_attention_waits_for_the_gpu(counted):
    assert {name: its["syncs"] for name, its in counted.items() if its["syncs"]} == {}


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *first_of_each(CASES), ALL_ON])
def test_no_layer_waits_or_mixes_devices_in_half_types(name, flags, dtype):
    """A whole layer with each setting of each mechanism, in training, and with maps in evaluation."""
    model = build_model({**flags, "dropout": 0.1, "attention_dropout": 0.1})
    encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    placed = where_placed(flags)
    with fake_cuda(), Counting() as mode:
        x, encoded = (torch.empty(length, 3, 24, dtype=dtype, device="cuda", requires_grad=True) for length in (5, 7))
        pads, source_pads = (torch.empty(3, length, dtype=torch.bool, device="cuda") for length in (5, 7))
        related = relate(torch.empty(3, 5, 5, dtype=torch.long, device="cuda"), ("dependency", "constituency"))
        future = torch.empty(5, 5, dtype=dtype, device="cuda")
        for training in (True, False):
            outputs, measurement = [], Measurement(terms(flags), weights=not training)
            if placed == "encoder":
                outputs.append(move(encoder, dtype).train(training)(x, pads, measurement, related)[0])
            if placed != "encoder" or name in ("off", ALL_ON[0]):
                inputs = (x, encoded, source_pads, None, future, pads)
                both = {"decoder": measurement._replace(weights=False), "cross": measurement}
                outputs.append(move(decoder, dtype).train(training)(*inputs, measurements=both)[0])
            for out in outputs:
                assert out.dtype == dtype and out.is_cuda
                if training:
                    out.sum().backward()
    assert mode.count.syncs == []


@pytest.mark.slow
@pytest.mark.parametrize("variant", [variant for variant in rows.VARIANTS if variant != "off"])
def test_translation_waits_no_more_often_than_without_a_mechanism(variant):
    flags = rows.VARIANTS[variant]
    on = ",".join(rows.components(flags))
    its, off = (count_generation("tiny", of, 8, 2) for of in (rows.placed(variant, on), {}))
    assert its["syncs"] == off["syncs"]


@pytest.mark.slow
@with_its_torch
def test_the_pages_say_what_is_counted(counted, kept):
    stale = [name for name, its in counted.items() if kept.get(name) != its]
    trained = "^base 32 training: (off|disagreement output everywhere|phrase, enlivened encoder:1)$"
    for only in (trained, "generation: talking", "iwslt14 comparison: modern-disagreement"):
        stale += [name for name, its in rows.count(only).items() if kept.get(name) != its]
    for corpus in scaling.SEEDS:
        compared = {f"{corpus} comparison: {row}" for row in load_table(f"comparison-{corpus}").rows}
        stale += compared ^ {name for name in kept if name.startswith(f"{corpus} comparison: ")}
    assert not stale, "run: python -m benchmarks.gpu_model --write"
    for name, tables in {"gpu.md": gpu_model.tables(kept), "scaling.md": scaling.tables(kept)}.items():
        text = (PAGES / name).read_text(encoding="utf-8")
        assert all(f"<!-- modelled: {table} -->" in text for table in tables)
        assert gpu_model.refresh(text, tables) == text, "run: python -m benchmarks.gpu_model --pages"


@with_its_torch
def test_a_part_is_counted_anew(tmp_path, kept):
    """The other figures and the text around the tables stay."""
    name = "base 32 attention: off encoder"
    figures = kept | {name: kept[name] | {"kept": 1}}
    (tmp_path / "figures.json").write_text(json.dumps({"torch": COUNTED_WITH, "figures": figures}))
    for page in ("gpu.md", "scaling.md"):
        (tmp_path / page).write_text((PAGES / page).read_text(encoding="utf-8"))
    gpu_model.main(["--write", "--only", f"{name}$"], tmp_path / "figures.json", tmp_path)
    assert gpu_model.read(tmp_path / "figures.json") == kept
    for page in ("gpu.md", "scaling.md"):
        assert (tmp_path / page).read_text() == (PAGES / page).read_text(encoding="utf-8")


def test_a_plain_attention_by_hand():
    """Base, the encoder: 4,096 tokens, width 512, 8 heads of 64 channels, half types."""
    (its,) = rows.count("base 32 attention: off encoder$").values()
    tokens, width, heads, length = 4096, 512, 8, 32
    projection = 2 * tokens * width * width
    products = 2 * 2 * tokens * length * width  # queries by keys, weights by values
    x, weight, bias = 2 * tokens * width, 2 * width * width, 2 * width
    mask, sums = 2 * tokens, 4 * tokens * heads
    # forward: the mask of padding in two operators, projections, fused attention, a copy of what it gives
    elementwise = tokens + tokens + tokens * width
    assert its["forward"]["launches"] == 2 + 4 + 1 + 1
    assert its["forward"]["flops"] == 4 * projection + products + elementwise
    masks = mask + (2 * mask + tokens)
    attention = 4 * x + mask + sums + 16  # and two numbers for dropout
    assert its["forward"]["bytes"] == masks + 4 * (2 * x + weight + bias) + attention + 2 * x
    # backward: two products of each projection, five products of attention for two
    assert its["backward"]["flops"] == pytest.approx(8 * projection + 2.5 * products, rel=0.002)
    # kept: q, k, v, heads before and after the last copy, and what the softmax needs of each row
    assert its["kept"] == pytest.approx(5 * x + sums, rel=0.01)


def test_operators_are_counted_as_gpus_run_them():
    with fake_cuda():
        x = torch.empty(8, 64, dtype=torch.float16, device="cuda")
        with Counting() as mode:
            x.t().view(64, 8)[:2].expand(3, 2, 8)  # views
            torch.empty_like(x)
            torch.zeros_like(x)
            x.add_(1)
            x[:1].expand(8, 64) + x
            x.float()
            torch.nn.functional.softmax(x, -1)
            (x @ x.t()).sum()
    kernels = [(k.name.partition("::")[2], k.launches, k.bytes, k.flops) for k in mode.count.kernels]
    assert kernels == [
        ("zeros_like", 1, 1024, 512), ("add_", 1, 2048, 512), ("add", 1, 128 + 1024 + 1024, 512),
        ("_to_copy", 1, 1024 + 2048, 512), ("_softmax", 1, 2048, 512), ("mm", 1, 2 * 1024 + 128, 2 * 8 * 8 * 64),
        ("sum", 1, 128 + 2, 64)
    ]  # fmt: skip


def test_a_triton_kernel_is_a_launch_with_its_own_reads_and_writes(monkeypatch):
    """An operator of two made-up kernels; what only the second reads is made inside."""

    def made_up(x: torch.Tensor, times: int) -> torch.Tensor:
        between, out = x.new_empty(11), torch.empty_like(x, dtype=torch.float16)
        launching.launch("first", 3, 1, x, x, between, times)
        launching.launch("second", 1, 1, between, out)
        return out

    operator = launching.operator(made_up)

    def run():
        with fake_cuda():
            x = torch.empty(5, 7, device="cuda")
            with Counting() as mode:
                operator(x, 3)
        (kernel,) = mode.count.kernels
        return kernel.launches, kernel.bytes, kernel.flops

    moved = (4 * 35 + 4 * 11) + (4 * 11 + 2 * 35)
    assert run() == (2, moved, 35)
    monkeypatch.setattr(cpu, "FLOPS", {"made_up": lambda x, times: 10 * times * x.numel()}, raising=False)
    assert run() == (2, moved, 10 * 3 * 35)


def test_fake_cuda_finds_what_a_gpu_would_refuse_or_wait_for():
    with fake_cuda():
        x = torch.empty(3, device="cuda", requires_grad=True)
        with pytest.raises(RuntimeError, match="cpu"):
            x + torch.empty(3)
        with pytest.raises(DataDependentOutputException):
            x.sum().item()
        with Counting() as mode:
            assert bool(x.sum() > 0)
            x.cpu()
        assert len(mode.count.syncs) == 2
        (x * 2).sum().backward()
        assert x.grad is not None and x.grad.is_cuda
    if torch.version.cuda is None:
        assert torch.accelerator.current_accelerator() is None
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            torch.zeros(1, device="cuda")


def test_memory_and_hours_follow_from_the_figures():
    its = {phase: {"H100": 1e-3, "A100": 2e-3, "launches": 100} for phase in ("forward", "backward", "optimizer")}
    its |= {"parameters": 50_000_000, "peak": 10**9, "kept": 0, "syncs": 0}
    assert scaling.memory(its) == 1.9e9
    summing = 2 * 7 / 8 * 1e8 / 450e9
    assert scaling.hours(its, "base", "H100", 1) == (pytest.approx(100_000 * (8 * 2e-3 + 1e-3) / 3600), 0)
    assert scaling.hours(its, "base", "H100", 8)[0] == pytest.approx(100_000 * (3e-3 + summing) / 3600)
    summing = 2 * 63 / 64 * 1e8 / 400e9
    assert scaling.hours(its, "base", "H100", 64)[0] == pytest.approx(12_500 * (3e-3 + summing) / 3600)
    slow = its | {"forward": its["forward"] | {"launches": 10_000}}
    assert scaling.seconds(slow, "H100", "forward") == 10_000 * 5e-6
    memories = {length: 10**9 + length * 10**7 for length in (32, 512, 1024)}
    assert [scaling.longest(memories, card * 10**9) for card in (1, 2, 7, 20)] == [0, 32, 512, 1024]
    assert scaling.half(memories) == pytest.approx(100)


def test_bad_flags_are_refused_in_one_line(capsys):
    for command, arguments, message in (
        (gpu_model.main, ["--only", "nothing"], "--only 'nothing': nothing has that in its name"),
        (gpu_model.main, ["--pages", "--write"], "--pages: counts nothing"),
        (gpu_check.main, ["--dry-run", "--only", "("], "--only '(': not a regular expression"),
    ):
        with pytest.raises(SystemExit) as stopped:
            command(arguments)
        assert stopped.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1]


def test_the_table_of_speeds_has_the_figures_of_the_model():
    def rows(page):  # of its first table with as many columns as these
        text = (ROOT / page).read_text(encoding="utf-8")
        table = re.search(r"^\| (?:mechanism|modelled) \| (?:CPU|launches \| GB).*\n(?:\|.*\n)+", text, re.MULTILINE)[0]
        heads, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
        return {line[0]: dict(zip(heads, line, strict=True)) for line in lines}

    modelled = rows("results/gpu.md")
    for name, row in rows("docs/speed.md").items():
        expected = [modelled[name][f"{column} speed"] for column in ("A100", "H100", "launches")]
        assert [row[f"{column}, modelled"] for column in ("A100", "H100", "launches")] == expected, name
        assert row["paper"] == modelled[name]["paper"], name
