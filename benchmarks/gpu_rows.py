"""What is modelled on GPUs, and the figures of it: every mechanism in the settings of its paper."""

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from benchmarks.gpu_counting import System, count_attention, count_generation, count_training
from benchmarks.sides import EVERYWHERE, of_row
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.registry import MECHANISMS, attribute_name
from fairseq_diverse.experiments import run
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.testing.models import components

LAUNCH = 5e-6  # seconds of the host for a launch: what torch's eager mode reaches at best
CASES = [*itertools.product(("base", "big"), (32, 512))]
LENGTHS = (32, 512, 1024, 2048, 4096)  # for which trainings are counted; the last is one sentence a batch
GENERATION = {"sentences": 32, "beam": 5, "steps": 32}

# Every mechanism in the settings of its paper; "{on}" is where it is placed. A new one needs a line here, a limit in
# tests/unit/test_gpu_model.py, and a row below.
VARIANTS: dict[str, dict[str, Any]] = {
    "off": {},
    "em routing": {"routing": "em", "routing_on": "{on}"},
    "simple routing": {"routing": "simple", "routing_on": "{on}"},
    "dependency": {"syntax": "dependency", "syntax_on": "{on}"},
    "phrase": {"syntax": "phrase", "syntax_on": "{on}"},
    "phrase, enlivened": {"syntax": "phrase", "syntax_on": "{on}", "enliven": "enliven", "enliven_on": "{on}"},
    "pruning": {"enliven": "prune", "enliven_on": "{on}"},
    "relative": {"relative_on": "{on}"},
    "localness": {"localness_on": "{on}", "localness_form": "shared"},  # with which the devices were measured
    "localness of heads": {"localness_on": "{on}"},
    "rotary": {"rotary_on": "{on}"},
    "alibi": {"alibi_on": "{on}"},
    "position bias": {"position_bias_on": "{on}"},
    "qk-norm": {"qk_norm_on": "{on}"},
    "synthesizer dense": {"synthesizer": "dense", "synthesizer_on": "{on}", "synthesizer_positions": 4096},
    "residual logits": {"residual_logits_on": "{on}"},
    "value residual": {"value_residual_on": "{on}"},
    "query width 20": {"qk_head_dim": 20, "qk_head_dim_on": "{on}"},
    "talking": {"talking": "both", "talking_on": "{on}"},
    "interacting concat": {"interacting": "concat", "interacting_on": "{on}"},
    "interacting sum": {"interacting": "sum", "interacting_on": "{on}"},
    "evolving": {"evolving_on": "{on}"},
    "differential": {"differential_on": "{on}"},
    "gated head": {"gated": "head", "gated_on": "{on}"},
    "gated element": {"gated": "element", "gated_on": "{on}"},
}
TERMS = ("subspace", "position", "output")


class Row(NamedTuple):
    """A trained model: a variant with its placement, disagreement terms with theirs, the paper's speed relative to its
    baseline (Base, on GPUs)."""

    variant: str
    on: str = ""
    terms: str = ""
    terms_on: str = ""
    paper: float | None = None

    @property
    def name(self) -> str:
        parts = [f"{self.variant} {self.on}"] if self.on else []
        parts += [f"disagreement {self.terms} {self.terms_on}"] if self.terms else []
        return " + ".join(parts).replace(EVERYWHERE, "everywhere") or self.variant

    @property
    def system(self) -> System:
        return System(placed(self.variant, self.on), self.terms, self.terms_on or EVERYWHERE)


ROWS = [
    Row("off"),
    # steps a second of Li et al. (2021), Tables 1-4, on P40
    *(Row("off", terms=t, terms_on="encoder", paper=p / 1.21) for t, p in zip(TERMS, (1.15, 1.14, 1.15), strict=True)),
    Row("off", terms=",".join(TERMS), terms_on="encoder", paper=1.05 / 1.21),
    Row("off", terms="output", terms_on=EVERYWHERE, paper=1.06 / 1.21),
    Row("off", terms=",".join(TERMS), terms_on=EVERYWHERE),
    Row("simple routing", "encoder", paper=1.23 / 1.92),
    Row("em routing", "encoder:1", paper=1.88 / 1.92),
    Row("em routing", "encoder:1-2", paper=1.67 / 1.92),
    Row("em routing", "encoder", paper=1.20 / 1.92),
    Row("em routing", EVERYWHERE, paper=0.66 / 1.92),
    Row("em routing", "encoder:1-2", "output", EVERYWHERE),
    # steps a second of Zhang et al. (2021), Tables 2 and A2, on TITAN Xp
    Row("dependency", "encoder:1"),
    Row("phrase", "encoder:1", paper=1.18 / 1.21),
    Row("phrase", "encoder", paper=1.10 / 1.21),
    Row("phrase, enlivened", "encoder:1"),
    Row("pruning", "encoder:1", paper=1.23 / 1.21),
    Row("relative", "encoder", paper=1.17 / 1.21),
    Row("localness", "encoder:1-3", paper=1.18 / 1.21),
    Row("localness of heads", "encoder:1-3"),
    Row("rotary", "encoder,decoder"),
    Row("alibi", "encoder,decoder"),
    Row("position bias", "encoder,decoder"),
    Row("qk-norm", EVERYWHERE),
    Row("synthesizer dense", "encoder,decoder"),
    Row("residual logits", EVERYWHERE),
    Row("value residual", EVERYWHERE),
    # minutes an epoch of Li and Luo (2022), Table 6, width 512 with 8 heads, on V100
    Row("query width 20", EVERYWHERE, paper=10.92 / 10.17),
    Row("talking", EVERYWHERE, paper=10.92 / 11.00),
    Row("interacting concat", EVERYWHERE, paper=10.92 / 14.50),
    Row("interacting sum", EVERYWHERE),
    Row("evolving", "encoder"),
    Row("evolving", EVERYWHERE),
    Row("differential", EVERYWHERE),
    Row("gated head", EVERYWHERE),
    Row("gated element", EVERYWHERE),
]


def count_row(row: run.Row) -> dict[str, Any]:
    """The summary of a training step of a table's row."""
    args = vars(of_row(row).args)
    flags = {name: args[name] for name in (flag.replace("-", "_") for flag in row.train)}
    system = System(flags, flags.pop("disagreement", ""), flags.pop("disagreement_on", EVERYWHERE))
    return count_training(row.size, system, 32)


def placed(variant: str, on: str) -> dict[str, Any]:
    """The flags of a variant there."""
    return {name: on if value == "{on}" else value for name, value in VARIANTS[variant].items()}


def attentions() -> Iterator[tuple[str, System, str]]:
    """Every variant and disagreement term at every component where it is defined: name, system, component."""
    for variant, flags in VARIANTS.items():
        for component in components(flags) if flags else COMPONENTS:
            yield f"{variant} {component}", System(placed(variant, component)), component
    for term in TERMS:
        for component in COMPONENTS:
            yield f"disagreement {term} {component}", System(terms=term), component


def not_modelled() -> list[str]:
    """The mechanisms that no variant switches on."""
    return [name for name in MECHANISMS if not any(attribute_name(name, "on") in flags for flags in VARIANTS.values())]


def count(only: str = "") -> dict[str, Any]:
    """Every figure whose name, such as ``base 32 training: off``, has this regular expression in it."""
    work: list[tuple[str, Any, tuple[Any, ...]]] = []
    for size, length in CASES:
        of = f"{size} {length}"
        work += [(f"{of} attention: {name}", count_attention, (size, *what, length)) for name, *what in attentions()]
    for size, length in itertools.product(("base", "big"), LENGTHS):
        of = f"{size} {length}"
        work += [(f"{of} training: {row.name}", count_training, (size, row.system, length)) for row in ROWS]
    for corpus in ("iwslt14", "wmt14"):
        rows = load_table(f"comparison-{corpus}").rows
        work += [(f"{corpus} comparison: {name}", count_row, (row,)) for name, row in rows.items()]
    steps = GENERATION["steps"], GENERATION["sentences"], GENERATION["beam"]
    work += [
        (f"base {steps[0]} generation: {row.name}", count_generation, ("base", row.system.flags, *steps))
        for row in ROWS
        if not row.terms
    ]
    bfloat16 = ("base", ROWS[0].system, 32, torch.bfloat16)
    work.append(("base 32 bfloat16: off", count_training, bfloat16))
    chosen = [part for part in work if re.search(only, part[0])]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Support for mismatched", category=UserWarning)  # fairseq's own masks
        return {name: of(*given) for name, of, given in tqdm(chosen, leave=False, disable=None, unit="count")}


def total(figures: dict[str, Any], name: str) -> float:
    return sum(phase[name] for phase in figures.values() if isinstance(phase, dict))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---", *["---:"] * (len(heads) - 1)], *rows)]


def ratio(baseline: float, figure: float) -> str:
    return f"{baseline / figure:.2f}"
