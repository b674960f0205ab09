"""Metrics that other programs compute: METEOR (Java), COMET (comet-score or pymarian-eval), MetricX."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from fairseq_diverse.metrics.scores import Lines, Result
from fairseq_diverse.metrics.words import mean_of, tokenize
from fairseq_diverse.preparation.tokens import clean
from fairseq_diverse.support.files import write_lines
from fairseq_diverse.support.installed import install
from fairseq_diverse.support.languages import base_language

JAVA = "install a Java runtime (apt install default-jre, brew install openjdk)"
COMET = "install unbabel-comet in an environment of its own, and put its comet-score on the PATH (docs/metrics.md)"
METRICX = "docs/metrics.md says how to set it up"
COMET_MODEL, METRICX_MODEL = "Unbabel/wmt22-comet-da", "google/metricx-24-hybrid-large-v2p6"
# METEOR's codes of languages that have other ones elsewhere
METEOR_CODES = {"cs": "cz", "sv": "se", "nb": "no", "nn": "no"}
# Languages with rules for normalizing text and a table of paraphrases, and those with a stemmer only
METEOR_TABLES = ("en", "cz", "de", "es", "fr", "ru")
METEOR_STEMMERS = ("da", "fi", "hu", "it", "nl", "no", "pt", "ro", "se", "tr")


def meteor(hypotheses: Lines, references: Lines, language: str) -> Result:
    """METEOR 1.5 of raw text, from 0 to 100, by the jar of pycocoevalcap with the language's own modules, weights and
    normalizer.

    Source: Denkowski and Lavie (2014). Without a table of paraphrases in the jar's folder (pycocoevalcap has only the
    English one), words match exactly or by their stems, or only exactly where METEOR has no stemmer; the signature says
    so. Without a normalizer METEOR gets tokenized, lower-cased text. Raises ``ValueError``: no language is named, Java
    or pycocoevalcap is missing, or METEOR fails."""
    if not language:
        raise ValueError("needs the target language; give --language (or --data)")
    jar = _meteor_jar()
    base = base_language(language)
    code = METEOR_CODES.get(base, base)
    table = jar.parent / "data" / f"paraphrase-{code}.gz"
    if code in METEOR_TABLES and table.exists():
        options, matchers = [], "all modules"
    elif code in METEOR_TABLES or code in METEOR_STEMMERS:
        modules = "exact" if code == "cz" else "exact stem"
        options, matchers = ["-m", modules], f"{modules} (no table of paraphrases for {code})"
    else:
        options, matchers = ["-m", "exact"], f"exact (METEOR does not know {code}: language-independent weights)"
        code = "other"
    if code in METEOR_TABLES:
        options.append("-norm")
    else:
        options.append("-lower")
        hypotheses, references = ([tokenize(line, language) for line in side] for side in (hypotheses, references))
    return _run_meteor(jar, hypotheses, references, ["-l", code, *options], f"METEOR 1.5|language:{code}|{matchers}")


def meteor_of_li2022(hypotheses: Lines, references: Lines) -> Result:
    """METEOR of tokenized text as nlg-eval has it and Li and Luo (2022) report it: the English one, whatever the
    language."""
    options, signature = ["-l", "en", "-norm"], "METEOR 1.5|language:en|all modules"
    return _run_meteor(_meteor_jar(), hypotheses, references, options, signature)


def comet(hypotheses: Lines, references: Lines, sources: Lines | None, model: str | None = None) -> Result:
    """COMET of raw text: the mean of its sentences' scores, mostly from 0 to 1, by the program ``comet-score``, or by
    ``pymarian-eval`` where only that is on the PATH; its names of the same models have no organization.

    Source: Rei et al. (2022). The signature has the program's version and the model, a name or a checkpoint. Raises
    ``ValueError``: the source is not given or of another length, the program is missing or fails."""
    _check_sources(sources, references)
    model = model or COMET_MODEL
    programs = {"comet-score": "unbabel-comet", "pymarian-eval": "pymarian"}
    name, program = next(((name, path) for name in programs if (path := shutil.which(name))), ("", ""))
    if not program:
        raise ValueError(f"neither comet-score nor pymarian-eval is on the PATH; {COMET}")
    import torch

    gpu = torch.cuda.is_available()
    if name == "comet-score":
        options = ["--gpus", str(int(gpu)), "--model", model]
    else:
        local = Path(model).exists()
        options = ["-m", *([model, "-l", "comet"] if local else [model.rpartition("/")[2].lower()]), "-a", "skip"]
        options += ["-w", "6", *(["-d", "0"] if gpu else ["-c", str(torch.get_num_threads())])]
    with TemporaryDirectory() as folder:
        source, hypothesis, reference = _write(Path(folder), sources or (), hypotheses, references)
        printed = _run(name, [program, "-s", source, "-t", hypothesis, "-r", reference, *options])
    pattern = r"\tSegment \d+\tscore: (\S+)" if name == "comet-score" else r"(?m)^(-?\d\S*)$"
    scores = [float(value) for value in re.findall(pattern, printed)]
    return _mean(name, scores, references, f"{name}|model:{model}|version:{_version(program, programs[name])}")


def metricx(hypotheses: Lines, references: Lines, sources: Lines | None, model: str | None = None) -> Result:
    """MetricX of raw text: the mean of its sentences' predicted errors, from 0 to 25, lower is better, by the
    ``predict`` of a checkout of google-research/metricx in ``FAIRSEQ_DIVERSE_METRICX``, with the Python of its .venv.

    Source: Juraska et al. (2024). The signature has the checkout's commit and the model: of MetricX-24, or of
    MetricX-23, which does not read the source. Raises ``ValueError``: the source is not given or of another length,
    there is no checkout, or the program fails."""
    _check_sources(sources, references)
    checkout, model = Path(os.environ.get("FAIRSEQ_DIVERSE_METRICX", "")).resolve(), model or METRICX_MODEL
    python = checkout / ".venv/bin/python"
    if "FAIRSEQ_DIVERSE_METRICX" not in os.environ or not python.exists():
        raise ValueError(f"FAIRSEQ_DIVERSE_METRICX names no checkout with .venv/bin/python; {METRICX}")
    import torch

    module, length = ("metricx23", "1024") if "metricx-23" in model else ("metricx24", "1536")
    fields = {"source": sources, "hypothesis": hypotheses, "reference": references}
    with TemporaryDirectory() as folder:
        inputs, outputs = Path(folder, "input.jsonl"), Path(folder, "output.jsonl")
        lines = (dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True))  # type: ignore[arg-type]
        write_lines(inputs, map(json.dumps, lines))
        options = ["--tokenizer", "google/mt5-xl", "--model_name_or_path", model, "--max_input_length", length]
        options += ["--batch_size", str(max(1, torch.cuda.device_count()))]  # of all GPUs: lines are not padded
        options += ["--input_file", str(inputs), "--output_file", str(outputs)]
        _run("metricx", [str(python), "-m", f"{module}.predict", *options], cwd=checkout)
        try:
            scores = [float(json.loads(line)["prediction"]) for line in outputs.read_text("utf-8").splitlines()]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"metricx wrote no predictions ({error})") from None
    done = subprocess.run(["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return _mean("metricx", scores, references, f"metricx|model:{model}|version:{done.stdout.strip() or 'unknown'}")


def _check_sources(sources: Lines | None, references: Lines) -> None:
    if sources is None:
        raise ValueError("needs the source text; give --source FILE")
    if len(sources) != len(references):
        raise ValueError(f"the source has {len(sources)} sentences, the reference {len(references)}")


def _mean(name: str, scores: Sequence[float], references: Lines, signature: str) -> Result:
    if len(scores) != len(references):
        raise ValueError(f"{name} printed {len(scores)} scores for {len(references)} sentences")
    return mean_of(scores, signature)


def _version(program: str, distribution: str) -> str:
    """Of a package in the environment of a Python program, by the interpreter in its first line."""
    with open(program, "rb") as file:
        first = file.readline(1000).decode(errors="replace").strip()
    script = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    command = [first.removeprefix("#!").strip(), "-c", script]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, ValueError, subprocess.CalledProcessError):
        return "unknown"


def _meteor_jar() -> Path:
    if not shutil.which("java"):
        raise ValueError(f"Java is not on the PATH; {JAVA}")
    spec = find_spec("pycocoevalcap")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (jar := Path(folder, "meteor", "meteor-1.5.jar")).exists():
            return jar
    raise ValueError(f"meteor-1.5.jar of the package pycocoevalcap is missing; run: {install('metrics')}")


def _run_meteor(jar: Path, hypotheses: Lines, references: Lines, options: list[str], signature: str) -> Result:
    with TemporaryDirectory() as folder:
        hypothesis, reference = _write(Path(folder), hypotheses, references)
        printed = _run("METEOR", ["java", "-Xmx2G", "-jar", str(jar), hypothesis, reference, *options, "-q"])
    try:
        return Result(100 * float(printed.split()[-1]), signature)
    except (IndexError, ValueError):
        raise ValueError("METEOR printed no score") from None


def _write(folder: Path, *texts: Lines) -> list[str]:
    for number, lines in enumerate(texts):
        write_lines(folder / str(number), (clean(line)[0].replace("\t", " ") for line in lines))
    return [str(folder / str(number)) for number in range(len(texts))]


def _run(name: str, command: list[str], cwd: Path | None = None) -> str:
    """What a program prints. Raises ``ValueError``: it cannot be started or fails; quotes the line that says why."""
    try:
        env = os.environ | {"PYTHONUTF8": "1"}  # in any locale
        result = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", cwd=cwd, env=env)
    except OSError as error:
        raise ValueError(f"{name} cannot be started: {error.strerror}") from None
    if result.returncode:
        errors = [line.strip() for line in result.stderr.splitlines() if re.search("error|exception", line, re.I)]
        reason = errors[-1] if errors else (result.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise ValueError(f"{name} failed: {reason}")
    return result.stdout
