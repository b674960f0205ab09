"""docs/deviations.md: its flags and files exist, and what it says of formulas and tables is so."""

import dataclasses
import re
from pathlib import Path

import torch
import torch.nn.functional as F

from fairseq_diverse.attention.functional.evolving import evolve_logits
from fairseq_diverse.attention.registry import MECHANISMS, flag_name
from fairseq_diverse.criterions.disagreement import DisagreementConfig
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.support.paths import config_names

ROOT = Path(__file__).resolve().parents[2]
DEVIATIONS = (ROOT / "docs/deviations.md").read_text(encoding="utf-8")

# of each score in a paper, the metric that it is compared with; every run has BLEU
METRICS = {
    **{"bleu": "multi-bleu", "wer-li2022": "wer-li2022", "meteor": "meteor-en"},
    **{"rouge-l": "rouge-l", "cider": "cider", "yisi": "yisi-1"},
}
PAPERS = ("li2021", "zhang2021", "wang2021", "li2022")


def test_flags_and_configurations_of_deviations_exist():
    flags = {flag_name(name, field.name) for name, k in MECHANISMS.items() for field in dataclasses.fields(k.Settings)}
    flags |= {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(DisagreementConfig)}
    own = {flag.split("-")[2] for flag in flags}
    named = set(re.findall(r"(--[a-z][\w-]*)", DEVIATIONS))
    assert {flag for flag in named if flag.split("-")[2] in own} <= flags and len(named & flags) > 10
    for name in re.findall(r"configs/[\w/*]+\.yaml", DEVIATIONS):
        assert list(ROOT.glob(name)), name


def test_the_decoders_border_differs_from_the_shift_in_seven_cells():
    """Of a 7 x 7 map, k = 3: convolution of the masked map, then shifted by one down and right."""
    torch.manual_seed(0)
    heads, n = 8, 7
    seen = torch.ones(n, n).tril().bool()
    logits, weight, bias = torch.randn(1, heads, n, n), torch.randn(heads, heads, 3, 3), torch.randn(heads)
    ours = evolve_logits(logits, None, weight, bias, "decoder", 0.0, 1.0, seen[None, None])
    literal = F.conv2d(logits.masked_fill(~seen, 0), weight, bias, padding=1).relu()
    shifted = F.pad(literal, (1, 0, 1, 0))[..., :n, :n]
    differ = ((ours - shifted).abs() > 1e-4).any(1)[0] & seen
    assert differ[:, 0].all() and int(differ.sum()) == 7 and int(seen.sum()) == 28
    assert "7 of the 28 that are seen in a 7" in DEVIATIONS


def test_a_papers_table_is_scored_by_its_papers_metrics():
    for table in [load_table(name) for name in config_names("tables") if name.split("-")[0] in PAPERS]:
        for row in table.rows.values():
            wanted = {METRICS[key] for key in row.published if key in METRICS}
            assert not wanted or "Compare the published" in table.note, f"{table.name}: does not say with what"
            wanted |= {"multi-bleu-compounds"} if wanted and row.data == "wmt14_en_de" else set()
            assert wanted <= set(row.metrics), (table.name, row.name)
            assert "ter" not in row.published  # no paper of these has TER under its name
