"""The model card of a shared model: README.md with front matter as the Hugging Face hub reads it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fairseq_diverse import __version__
from fairseq_diverse.attention.registry import MECHANISMS, read_settings
from fairseq_diverse.checkpoints.loading import settings_of
from fairseq_diverse.experiments.kinds.kind import KINDS, Summary
from fairseq_diverse.experiments.runs.folder import read_summary
from fairseq_diverse.experiments.runs.provenance import commits_of
from fairseq_diverse.metrics.catalogue import find
from fairseq_diverse.metrics.glue import HEADINGS
from fairseq_diverse.metrics.seeds import Spread
from fairseq_diverse.preparation.pipeline import FILE, read_record
from fairseq_diverse.support.files import RUN_AGAIN

# by task: how the hub calls it, and what runs it
PIPELINES = {
    **dict.fromkeys(("translation", "translation_with_syntax"), "translation"),
    **{"language_modeling": "text-generation", "masked_lm": "fill-mask"},
    **dict.fromkeys(("span_corruption", "text_to_text"), "text2text-generation"),
    **dict.fromkeys(("sentence_prediction", "rationales"), "text-classification"),
    **dict.fromkeys(("logical_inference", "sentence_probing"), "text-classification"),
}
TRANSLATED = ("translation", "translation_with_syntax", "text_to_text")
COMMANDS = {
    "rationales": "rationales --checkpoint DIR --data DATA --out rationales.jsonl",
    **dict.fromkeys(("logical_inference", "sentence_probing"), "accuracy model=DIR --data DATA"),
    **dict.fromkeys(("sentence_prediction", "text_to_text"), "glue --checkpoint DIR --data DATA"),
}
LOAD = 'import fairseq_diverse\n\nshared = fairseq_diverse.load("DIR")'
TOKENS = 'tokens = shared.encode("A sentence.")[None]\n'
FIRST = 'tokens = torch.cat([torch.tensor([0]), shared.encode("A sentence.")])[None]  # <s> comes first\n'
LOGITS = "logits, _ = shared.model({})  # (1, {}, words) of shared.task.source_dictionary".format
OF_TOKENS = LOGITS("tokens", "T")
PYTHON = {
    **dict.fromkeys(TRANSLATED, 'print(shared.translate(["A sentence."], beam=5))'),
    **{"language_modeling": TOKENS + OF_TOKENS, "masked_lm": FIRST + OF_TOKENS},
    "sentence_prediction": f"""{FIRST}head = "sentence_classification_head"
logits, _ = shared.model(tokens, features_only=True, classification_head_name=head)  # (1, classes)""",
    "span_corruption": TOKENS + LOGITS("tokens, None, tokens[:, -1:]", 1),
}
OWN_FOLDER = '"$(fairseq-diverse user-dir)"'
BIBTEX = """@software{fairseq_diverse,
  author = {{The fairseq\\_diverse authors}},
  title = {fairseq\\_diverse: attention diversity for neural machine translation},
  version = {VERSION}
}"""
Figures = list[tuple[str, str, Sequence[float], int, str]]  # key, name, one value a seed, digits, signature


def model_card(title: str, checkpoint: Path, folder: Path, state: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """README.md of a shared model.

    Args:
        checkpoint: its file; ``state`` is what is in it. Where it is the one that a finished run evaluated, its scores
            and those of the other seeds are shown.
        folder: the shared model; ``config`` is its config.json.

    Raises:
        ValueError: a summary is damaged.
    """
    summary, seeds = _summaries(checkpoint)
    record = read_record(folder) if (folder / FILE).is_file() else {}
    task, figures = str(config["task"]), _figures(seeds)
    model = settings_of("model", state)
    settings = type("Settings", (), dict(model)) if isinstance(model, Mapping) else model
    active = [name for name in MECHANISMS if read_settings(settings, name).active]
    languages = [name for name in (record.get("source"), record.get("target")) if name and len(name) in (2, 3)]
    data = str(summary.get("data") or record.get("name") or "data")
    front: dict[str, Any] = {"language": languages} if languages else {}
    front |= {"library_name": "fairseq-diverse"} | ({"pipeline_tag": PIPELINES[task]} if task in PIPELINES else {})
    front |= {"tags": ["fairseq", "attention", *active]}
    if summary:
        number = [run["seed"] for run in seeds].index(summary["seed"])
        metrics = [
            {"type": key, "value": round(values[number], digits), "name": name}
            for key, name, values, digits, _ in figures
        ]
        where = {"name": f"{data}, {'dev' if 'glue' in summary else summary.get('test') or 'test'}", "type": data}
        result = {"task": {"type": front.get("pipeline_tag", task)}, "dataset": where, "metrics": metrics}
        front |= {"model-index": [{"name": title, "results": [result]}]}
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}# license: choose one\n---",
        f"# {title}",
        _about(state, config, summary, active),
        "## Data\n\n" + _data(data, record),
        "## Scores\n\n" + _scores(summary, seeds, figures),
        "## Use\n\n" + _use(task, config, summary),
        "## Cite\n\n" + _cite(active),
    ]
    if summary.get("commands"):
        note = f"RUN is the folder of the run, {summary['data']} its data."
        lines = "\n".join(summary["commands"]).replace(" --user-dir fairseq_diverse ", f" --user-dir {OWN_FOLDER} ")
        parts.insert(-1, f"## Training\n\n{note}\n\n```bash\n{lines}\n```")
    return "\n\n".join(parts) + "\n"


def _summaries(checkpoint: Path) -> tuple[Summary, list[Summary]]:
    """That of the run that evaluated the checkpoint, and those of all its seeds in their order; empty if none did."""
    folder = checkpoint.parent.parent
    if checkpoint.parent.name != "checkpoints" or not (folder / "summary.json").is_file():
        return {}, []
    summary = read_summary(folder / "summary.json", RUN_AGAIN)
    if checkpoint.name != ("checkpoint_average.pt" if summary["row"]["average"] else "checkpoint_last.pt"):
        return {}, []
    paths = [path for path in folder.parent.glob("seed*/summary.json") if path.parent != folder]
    others = [read_summary(path, RUN_AGAIN) for path in paths]
    same = [run for run in others if (run["row"], run.get("data_hash")) == (summary["row"], summary.get("data_hash"))]
    seeds = [summary, *(run for run in same if run["seed"] != summary["seed"])]
    return summary, sorted(seeds, key=lambda run: run["seed"])


def _figures(seeds: Sequence[Summary]) -> Figures:
    """The measures of their kind, and further metrics that all seeds have; of GLUE every metric of every dev set."""
    if not seeds:
        return []
    if sets := seeds[0].get("glue"):
        named = [(name, metric) for name, part in sets.items() for metric in part["metrics"]]
        by_metric = {(n, metric): [run["glue"][n]["metrics"][metric] for run in seeds] for n, metric in named}
        return [(metric, f"{n} {HEADINGS[metric]}", values, 2, "") for (n, metric), values in by_metric.items()]
    signatures = seeds[0].get("metrics", {}).get("signatures", {})
    measures = KINDS[seeds[0]["kind"]].measures(())
    figures: Figures = [
        (measure.key, measure.name, values, measure.digits, signatures.get(measure.key, ""))
        for measure in measures
        if None not in (values := [measure.figure(run) for run in seeds])
    ]
    shown = {measure.key for measure in measures} | {"signatures"}
    for key in [key for key in seeds[0].get("metrics", {}) if key not in shown]:
        if all(key in run["metrics"] for run in seeds):
            metric = find(key)
            values = [run["metrics"][key] for run in seeds]
            figures.append((key, metric.heading, values, metric.digits, signatures.get(key, "")))
    return figures


def _about(state: Mapping[str, Any], config: Mapping[str, Any], summary: Summary, active: Sequence[str]) -> str:
    parameters = summary.get("parameters") or sum(value.numel() for value in state["model"].values())
    text = f"mechanisms of attention: {', '.join(active)}" if active else "without mechanisms of attention"
    by = f"seed {summary['seed']}, commit {', '.join(commits_of([summary]))}" if summary else f"version {__version__}"
    facts = [f"- Architecture `{config['architecture']}`, task `{config['task']}`, {parameters:,} parameters; {text}."]
    facts += [f"- Trained by fairseq_diverse for {config['updates']:,} updates, {by}."]
    if code := config.get("code"):
        todo = f"give `--user-dir DIR/{code}`, or import the folder before `fairseq_diverse.load`."
        facts += [f"- **Has code of its author**, in `{code}`, that loading does not run. Read it first; then {todo}"]
    return "\n".join(facts)


def _data(data: str, record: Mapping[str, Any]) -> str:
    if not record:
        return f"`{data}`, binarized without `fairseq-diverse prepare`: the steps before are not recorded."
    between = " to ".join(name for name in (record["source"], record["target"]) if name)
    splits = ", ".join(f"{name} {count['kept']:,}" for name, count in record["splits"].items())
    bpe = record["config"]["bpe"]
    steps = [f"- `{data}`, {between}: {splits} lines. Hash of the prepared text: `{record['hash']}`."]
    steps += [f"- Subwords: {bpe['kind']}, size {bpe['size']:,}."]
    for name, side in record["config"]["sides"].items():
        applied = [key for key in ("normalize", "lowercase", "truecase") if side.get(key)]
        steps.append(f"- {name.capitalize()}: tokenizer {', '.join([side['tokenizer'], *applied])}.")
    return "\n".join(steps)


def _scores(summary: Summary, seeds: Sequence[Summary], figures: Figures) -> str:
    if not summary:
        return "Not measured: the checkpoint is not the one that a finished run of `fairseq-diverse run` evaluated."
    number = [run["seed"] for run in seeds].index(summary["seed"])
    named = ", ".join(str(run["seed"]) for run in seeds)
    several = len(seeds) > 1
    lines = [f"| | this model, seed {summary['seed']} |" + f" seeds {named}, ± deviation |" * several]
    lines += ["| --- | ---: |" + " ---: |" * several]
    for _, name, values, digits, _ in figures:
        mean = f" {Spread.over(values).text(digits)} |" * several
        lines.append(f"| {name} | {values[number]:.{digits}f} |{mean}")
    notes = [f"- {name}: `{signature}`" for _, name, _, _, signature in figures if signature]
    row = summary["system"]
    notes += [f"- Compared with its baseline over seeds: `fairseq-diverse report` of its table, row `{row}`."]
    return "\n".join(lines) + "\n\n" + "\n".join(notes)


def _use(task: str, config: Mapping[str, Any], summary: Summary) -> str:
    user_dir = f" --user-dir DIR/{config['code']}" if config.get("code") else ""
    lines = ["pip install 'fairseq-diverse[fairseq,share]'"]
    if command := COMMANDS.get(task):
        lines.append(f"fairseq-diverse {command}{user_dir}")
    if task in TRANSLATED:
        generate = summary.get("row", {}).get("generate", {})
        search = {flag: generate[flag] for flag in ("beam", "lenpen", "max-len-a", "max-len-b") if flag in generate}
        search |= {"lenpen": f"{summary['chosen']['lenpen']:g}"} if "chosen" in summary else {}
        flags = "".join(f" --{flag} {value}" for flag, value in search.items())
        lines.append(f"fairseq-diverse translate --model DIR{user_dir}{flags} --input raw.txt --out translations.txt")
    shell, python = "\n".join(lines), PYTHON.get(task, "")
    text = f"DIR is this folder, or its name on the Hugging Face hub.\n\n```bash\n{shell}\n```"
    start = "import torch\n\n" * ("torch." in python) + LOAD
    return text + f"\n\n```python\n{start}\n{python}\n```" * bool(python)


def _cite(active: Sequence[str]) -> str:
    entry = BIBTEX.replace("VERSION", __version__)
    papers = {name: re.search(r"Source: (.+?\(\d{4}\))", MECHANISMS[name].__doc__ or "", re.DOTALL) for name in active}
    named = [f"- {name}: {' '.join(match[1].split())}" for name, match in papers.items() if match]
    return f"```bibtex\n{entry}\n```" + ("\n\nThe papers of its mechanisms:\n\n" + "\n".join(named)) * bool(named)
