"""Metrics that other programs compute: METEOR (Java) and COMET (comet-score)."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fairseq_diverse.metrics.scores import Result
from fairseq_diverse.metrics.words import ratio, tokenize
from fairseq_diverse.preparation.tokens import clean
from fairseq_diverse.support.installed import install
from fairseq_diverse.support.languages import base_language

JAVA = "install a Java runtime (apt install default-jre, brew install openjdk)"
COMET = "pip install unbabel-comet in an environment of its own, and put its comet-score on the PATH"
# METEOR's codes of languages that have other ones elsewhere
METEOR_CODES = {"cs": "cz", "sv": "se", "nb": "no", "nn": "no"}
# Languages with rules for normalizing text and a table of paraphrases, and those with a stemmer only
METEOR_TABLES = ("en", "cz", "de", "es", "fr", "ru")
METEOR_STEMMERS = ("da", "fi", "hu", "it", "nl", "no", "pt", "ro", "se", "tr")


def meteor(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Result:
    """METEOR 1.5, from 0 to 100, by the jar of pycocoevalcap with the language's own modules, weights and normalizer.

    Source: Denkowski and Lavie (2014). Without a table of paraphrases in the jar's folder (pycocoevalcap has only the
    English one), words match exactly or by their stems, or only exactly where METEOR has no stemmer; the signature
    says so. Without a normalizer METEOR gets tokenized, lower-cased text.

    Args:
        hypotheses, references: raw text.

    Raises:
        ValueError: no language is named, Java or pycocoevalcap is missing, or METEOR fails.
    """
    if not language:
        raise ValueError("needs the target language; give --language (or --data)")
    jar = _meteor_jar()
    base = base_language(language)
    code = METEOR_CODES.get(base, base)
    table = jar.parent / "data" / f"paraphrase-{code}.gz"
    if code in METEOR_TABLES and table.exists():
        options, said = [], "all modules"
    elif code in METEOR_TABLES or code in METEOR_STEMMERS:
        modules = "exact" if code == "cz" else "exact stem"
        options, said = ["-m", modules], f"{modules} (no table of paraphrases for {code})"
    else:
        options, said = ["-m", "exact"], f"exact (METEOR does not know {code}: language-independent weights)"
        code = "other"
    if code in METEOR_TABLES:
        options.append("-norm")
    else:
        options.append("-lower")
        hypotheses, references = ([tokenize(line, language) for line in side] for side in (hypotheses, references))
    return _run_meteor(jar, hypotheses, references, ["-l", code, *options], f"METEOR 1.5|language:{code}|{said}")


def meteor_of_li2022(hypotheses: Sequence[str], references: Sequence[str]) -> Result:
    """METEOR as nlg-eval has it and Li and Luo (2022) report it: the English one, whatever the language.

    Args:
        hypotheses, references: tokenized text.
    """
    return _run_meteor(
        _meteor_jar(), hypotheses, references, ["-l", "en", "-norm"], "METEOR 1.5|language:en|all modules"
    )


def comet(
    hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None, model: str | None = None
) -> Result:
    """COMET of raw text by the program ``comet-score``: the mean of its sentences' scores, mostly from 0 to 1.

    Args:
        model: name or checkpoint for ``comet-score --model``; None for that program's default.

    Raises:
        ValueError: the source is not given or of another length, comet-score is missing or fails.
    """
    if sources is None:
        raise ValueError("needs the source text; give --source FILE")
    if len(sources) != len(references):
        raise ValueError(f"the source has {len(sources)} sentences, the reference {len(references)}")
    program = shutil.which("comet-score")
    if not program:
        raise ValueError(f"comet-score is not on the PATH; {COMET}")
    import torch

    options = ["--gpus", "1" if torch.cuda.is_available() else "0", *(["--model", model] if model else [])]
    with TemporaryDirectory() as folder:
        source, hypothesis, reference = _write(Path(folder), sources, hypotheses, references)
        printed = _run("comet-score", [program, "-s", source, "-t", hypothesis, "-r", reference, *options])
    scores = [float(value) for value in re.findall(r"\tSegment \d+\tscore: (\S+)", printed)]
    if len(scores) != len(references):
        raise ValueError(f"comet-score printed {len(scores)} scores for {len(references)} sentences")
    return Result.of(
        np.stack([np.array(scores), np.ones(len(scores))], axis=1), ratio, f"comet-score|model:{model or 'its default'}"
    )


def _meteor_jar() -> Path:
    if not shutil.which("java"):
        raise ValueError(f"Java is not on the PATH; {JAVA}")
    spec = find_spec("pycocoevalcap")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (jar := Path(folder, "meteor", "meteor-1.5.jar")).exists():
            return jar
    raise ValueError(f"meteor-1.5.jar of the package pycocoevalcap is missing; run: {install('metrics')}")


def _run_meteor(
    jar: Path, hypotheses: Sequence[str], references: Sequence[str], options: list[str], signature: str
) -> Result:
    with TemporaryDirectory() as folder:
        hypothesis, reference = _write(Path(folder), hypotheses, references)
        printed = _run("METEOR", ["java", "-Xmx2G", "-jar", str(jar), hypothesis, reference, *options, "-q"])
    try:
        return Result(100 * float(printed.split()[-1]), signature)
    except (IndexError, ValueError):
        raise ValueError("METEOR printed no score") from None


def _write(folder: Path, *texts: Sequence[str]) -> list[str]:
    """Each text in a file of its own, one sentence a line."""
    paths = []
    for number, lines in enumerate(texts):
        path = folder / str(number)
        path.write_text("".join(clean(line)[0] + "\n" for line in lines), encoding="utf-8", newline="\n")
        paths.append(str(path))
    return paths


def _run(name: str, command: list[str]) -> str:
    """What a program prints.

    Raises:
        ValueError: it cannot be started or fails; quotes the line that says why.
    """
    try:
        result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"{name} cannot be started: {error.strerror}") from None
    if result.returncode:
        said = [line.strip() for line in result.stderr.splitlines() if re.search("error|exception", line, re.I)]
        reason = said[-1] if said else (result.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise ValueError(f"{name} failed: {reason}")
    return result.stdout
