"""Translations by fairseq's command line, compared with what a model gives under teacher forcing."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_diverse.attention.request import AttentionRequest
from tests.integration.commands import run

DECODING = "--cpu --num-workers 0 --beam 2 --min-len 3 --max-len-b 6"
Hypotheses = list[tuple[int, str, list[float]]]


def printed(log: str, letter: str) -> dict[int, list[str]]:
    """fairseq's lines H, P, A, ... for each sentence, one entry per hypothesis."""
    lines: dict[int, list[str]] = {}
    for number, text in re.findall(rf"^{letter}-(\d+)\t(.*)$", log, re.MULTILINE):
        lines.setdefault(int(number), []).append(text)
    return lines


def generate(
    data: Path, path: str | Path, *flags: object, tool: str = "generate", device: str = "cpu"
) -> tuple[Hypotheses, str]:
    """Hypotheses as (sentence, words, base-2 logarithms of the tokens' probabilities), and the whole output."""
    decoding = DECODING if device == "cpu" else DECODING.replace("--cpu", "")
    output = run(tool, data, "--path", path, *decoding.split(), *flags).stdout
    hypotheses = [
        (number, line.split("\t")[1], [float(p) for p in scores.split()])
        for number, lines in printed(output, "H").items()
        for line, scores in zip(lines, printed(output, "P")[number], strict=True)
    ]
    assert len({number for number, _, _ in hypotheses}) == 8
    return sorted(hypotheses), output


def load(*paths: Path, **overrides: Any) -> list[Any]:
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(p) for p in paths], arg_overrides=overrides)
    return [model.eval() for model in models]


def source(data: Path, number: int) -> str:
    return (data.parent / "test.en").read_text().splitlines()[number]


@torch.no_grad()
def forced(
    models: list[Any], data: Path, number: int, hypothesis: str, request: AttentionRequest | None = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Each token's probability under teacher forcing, averaged over models, and the result of the last model."""
    probabilities = []
    for model in models:
        texts = (model.encoder.dictionary, source(data, number)), (model.decoder.dictionary, hypothesis)
        src, tgt = (words.encode_line(text, add_if_not_exist=False).long()[None] for words, text in texts)
        output = model(src, torch.tensor([src.size(1)]), tgt.roll(1, 1), attention_request=request)
        probabilities.append(model.get_normalized_probs(output, log_probs=False).gather(-1, tgt[..., None])[0, :, 0])
    return torch.stack(probabilities).mean(0), output[1]


def assert_scores(data: Path, hypotheses: Hypotheses, *models: Any, tolerance: float = 2e-3) -> None:
    """The scores of step-by-step decoding equal those of one full pass of models, or of those of checkpoints."""
    loaded = load(*models) if isinstance(models[0], Path) else [*models]
    for number, text, scores in hypotheses:
        assert scores == pytest.approx(forced(loaded, data, number, text)[0].log2().tolist(), abs=tolerance), text


def assert_decodes(data: Path, path: Path, *flags: object) -> Hypotheses:
    """What fairseq-generate finds has the scores of one full pass."""
    hypotheses, _ = generate(data, path, *flags)
    assert_scores(data, hypotheses, path)
    return hypotheses
