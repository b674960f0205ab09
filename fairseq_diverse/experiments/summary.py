"""What a finished run leaves: ``summary.json``."""

from typing import Any

from fairseq_diverse.experiments import logs
from fairseq_diverse.experiments.runs import Run
from fairseq_diverse.files import atomic_write, read_lines


def summarize(run: Run) -> dict[str, Any]:
    """Score a run's translation (also written to ``test.hyp``) and gather what its steps measured.

    BLEU, chrF and TER are detokenized and cased, against the raw reference; ``test_nll`` is in nats, one value a
    sentence; speeds are target words (subwords) per second; memory is in bytes.
    """
    from fairseq_diverse.evaluation.metrics import read_generation, score
    from fairseq_diverse.preparation import Preprocessing

    text = run.data.path / "text"
    references = read_lines(text / f"test.{run.data.target}")
    preprocessing = Preprocessing.load(run.data.path)
    hypotheses = [preprocessing.decode(line) for line in read_generation(run.directory / "generate.log")]
    nll = logs.reference_nll(run.directory / "reference.log")
    if not len(hypotheses) == len(references) == len(nll):
        raise ValueError(
            f"{run.directory}: {len(hypotheses)} translations and {len(nll)} scored sentences, "
            f"but {text / f'test.{run.data.target}'} has {len(references)} lines"
        )
    with atomic_write(run.directory / "test.hyp") as f:
        f.writelines(line + "\n" for line in hypotheses)
    state = run.state
    train, generate = state["train"], state["generate"]
    started = state.get("starts", [{}])[-1]
    peaks = {step: state[step]["peak_memory"] for step in ("train", "generate")}
    if train.get("gb_free") is not None:
        import torch

        peaks["gpu"] = torch.cuda.get_device_properties(0).total_memory - int(train["gb_free"] * 2**30)
    return {
        "system": run.row.name,
        "data": run.data.name,
        "data_hash": run.data.hash,
        "size": run.row.size,
        "seed": run.seed,
        "metrics": score(hypotheses, references),
        "test_nll": [round(value, 3) for value in nll],
        "valid_nll": train["valid_nll"],
        "parameters": train["parameters"],
        "words_per_second": {"train": train["words_per_second"], "generate": generate.get("words_per_second")},
        "peak_memory": peaks,
        "updates": run.row.max_update,
        **started,
        "commands": (run.directory / "commands.sh").read_text(encoding="utf-8").split("\n\n"),
        "checkpoint": str(run.checkpoint),
    }
