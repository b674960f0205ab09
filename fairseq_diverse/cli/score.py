"""Score translations with many metrics, confidence intervals and significance tests.

A translation file is detokenized text, one sentence a line, or the output of fairseq-generate. With --data, subwords
and tokenization in the output of fairseq-generate are undone as the data were prepared. References are raw text.

Metrics (--metrics a,b or all; docs/metrics.md explains each):
  bleu chrf ter                       sacreBLEU (default)
  multi-bleu multi-bleu-compounds     BLEU of tokenized text; the second splits words at hyphens first
  wer rouge-l cider yisi-0            of tokenized text
  meteor yisi-1                       need Java (meteor), --yisi-model (yisi-1)
  comet metricx                       need --source and their programs; comet:MODEL, metricx:MODEL name the model
  wer-li2022 meteor-en                what Li and Luo (2022) report as WER (TER) and METEOR (English for all languages)
A metric that lacks one of these is left out, and one line says what is missing. Text is tokenized by Moses' rules for
the target language, by sacreBLEU for zh, ja, ko. The exit code is 2 if no metric is left, or if one of bleu, chrf, ter
or --test-metric is left out.

With --baseline, p is the two-sided probability of such a difference in --test-metric by chance. Systems of several
seeds (--system NAME=FILE,FILE,...) are shown as mean ± standard deviation, and p is by Welch's t-test over seeds, for
each system alone. `fairseq-diverse report` tests all rows of a table together (docs/statistics.md).
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np

from fairseq_diverse.cli import named_path
from fairseq_diverse.metrics import scores as scoring
from fairseq_diverse.metrics import significance
from fairseq_diverse.metrics.catalogue import Texts, chosen, find
from fairseq_diverse.metrics.significance import RESAMPLES, SEED, TRIALS
from fairseq_diverse.metrics.words import check_language
from fairseq_diverse.preparation.pipeline import entry, lowercased, read_record
from fairseq_diverse.preparation.tokens import TOKENIZED, spaced_stops
from fairseq_diverse.support.errors import warn
from fairseq_diverse.support.files import read_lines, write_text
from fairseq_diverse.support.languages import TOKENIZERS, base_language
from fairseq_diverse.support.tables import in_columns, one_line

TOKENIZED_LINES = 100  # from which on a file is said to look tokenized, as by sacreBLEU
EXAMPLE = "fairseq-diverse score --hyp new.log --baseline baseline.log --ref test.de --data data/multi30k_en_de"


class System(NamedTuple):
    """A system's files, one a seed, and by metric what each of them scores."""

    name: str
    files: list[Path]
    results: dict[str, list[scoring.Result]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(read_paths=())  # --data is checked as all files are
    systems = parser.add_mutually_exclusive_group(required=True)
    systems.add_argument("--hyp", type=Path, nargs="+", metavar="FILE", help="translations to score")
    systems.add_argument("--system", nargs="+", metavar="NAME=FILE,FILE,...", help="systems to score, one file a seed")
    add = parser.add_argument
    add("--ref", type=Path, nargs="+", required=True, metavar="FILE", help="references, raw; several for sacreBLEU")
    add("--baseline", metavar="FILE|NAME", help="file, or name of --system, to compare with (default: the first name)")
    add("--data", type=Path, metavar="DIR", help="prepared data set, to undo subwords and tokenization")
    add("--language", help="language of the translations (default: the target of --data)")
    add("--lowercase", action="store_true", help="compare in lower case (default: only if the target of --data is)")
    add("--metrics", default="bleu,chrf,ter", metavar="LIST", help="comma-separated, or all (default: %(default)s)")
    test = "test for one file per system: paired bootstrap (default), approximate randomization, or sign test"
    add("--test", choices=("bootstrap", "randomization", "sign"), default="bootstrap", help=test)
    add("--test-metric", metavar="METRIC", help="metric of the test (default: bleu, else the first possible)")
    add("--source", type=Path, metavar="FILE", help="source text, raw, for comet and metricx")
    add("--yisi-model", type=Path, metavar="DIR", help="folder of the embedding model for yisi-1")
    add("--yisi-layer", type=int, default=-1, metavar="N", help="layer of it (default: the last)")
    add("--comet-model", metavar="MODEL", help="model of comet, as `--metrics comet:MODEL`")
    add("--json", type=Path, metavar="FILE", help="also write the scores to FILE")


def main(args: argparse.Namespace) -> int:
    if args.language:
        check_language(args.language)
    wanted = chosen(args.metrics)
    if args.test_metric and args.test_metric not in wanted:
        raise ValueError(f"--test-metric {args.test_metric}: not one of --metrics {','.join(wanted)}")
    files, baseline = _files(args)
    if args.test != "bootstrap" and not baseline:
        raise ValueError(f"--test {args.test}: needs a second system, --baseline FILE")
    systems, missing = _score(files, wanted, args)
    for metric, reason in missing.items():
        print(f"fairseq-diverse score: {metric}: {reason}", file=sys.stderr)
    metrics = [metric for metric in wanted if metric not in missing]
    if not metrics:
        return 2
    seeds = any(len(system.files) > 1 for system in systems)
    if seeds and args.test != "bootstrap":
        raise ValueError(f"--test {args.test}: is of one file a system; systems with several are tested over seeds")
    named = args.test_metric
    able = [metric for metric in metrics if seeds or systems[0].results[metric][0].statistics.size]
    if named in metrics and named not in able:
        raise ValueError(f"--test-metric {named}: has no counts by sentence to resample; give seeds or another metric")
    tested = next((metric for metric in (named or "bleu", *able) if metric in able), None)
    resamples = {}
    if tested and not seeds:
        results = {system.name: system.results[tested][0] for system in systems}
        resamples = {name: significance.resampled(one.statistics, one.combine) for name, one in results.items()}
    rows = [_row(system, seeds, tested, resamples.get(system.name)) for system in systems]
    if baseline and tested:
        _compare(rows, systems, tested, "seeds" if seeds else args.test, resamples)
    print(_table(rows, metrics, tested, seeds), end="\n\n")
    width = max(len(find(metric).heading) for metric in metrics)
    for metric in metrics:
        print(f"{find(metric).heading:<{width}} {systems[0].results[metric][0].signature}")
    print(_legend("seeds" if seeds else args.test, bool(baseline), tested))
    if args.json:
        result: dict[str, Any] = {"ref": str(args.ref[0]) if len(args.ref) == 1 else list(map(str, args.ref))}
        result |= {"test": "welch" if seeds else args.test, "test_metric": tested}
        if not seeds:  # of the intervals, and of the bootstrap
            result |= {"resamples": RESAMPLES, "seed": SEED}
        if args.test == "randomization":
            result["trials"] = TRIALS
        result |= {"missing": missing, "systems": rows}
        write_text(args.json, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    return 2 if any(metric in missing for metric in (*scoring.METRICS, args.test_metric)) else 0


def _files(args: argparse.Namespace) -> tuple[dict[str, list[Path]], str | None]:
    """The files of every system by its name, the baseline first, and the baseline's name."""
    if args.hyp:
        paths = ([Path(args.baseline)] if args.baseline else []) + args.hyp
        return {str(path): [path] for path in paths}, args.baseline and str(Path(args.baseline))
    files = {}
    for text in args.system:
        name, paths = named_path(text, "FILE,FILE,...")
        if name in files:
            raise ValueError(f"--system {name}: named twice; its seeds are one list, {name}=FILE,FILE")
        files[name] = [Path(path) for path in paths.split(",")]
        if len({path.resolve() for path in files[name]}) < len(files[name]):
            raise ValueError(f"--system {text}: the same file twice; a seed has a file of its own")
    if args.baseline and args.baseline not in files:
        raise ValueError(f"--baseline {args.baseline}: not one of the systems {', '.join(files)}")
    baseline = args.baseline or next(iter(files))
    return {baseline: files.pop(baseline), **files}, baseline if files else None


def _score(
    files: dict[str, list[Path]], metrics: list[str], args: argparse.Namespace
) -> tuple[list[System], dict[str, str]]:
    """The systems, and why a metric is missing, for those that some file could not be scored by."""
    references = {path: _references(path) for path in args.ref}
    side, language = "target", (args.language or "").replace("-", "_")  # as data have it
    if args.data:
        record = read_record(args.data)
        target = entry(args.data, record, "target")
        language = language or target
        if language != target and language == entry(args.data, record, "source"):  # the model's direction is the other
            side = "source"
    all_files = (path for paths in files.values() for path in paths)
    translations = {path: scoring.read_translations(path, args.data, side) for path in all_files}
    first, *others = references
    for path, lines in [*((path, references[path]) for path in others), *translations.items()]:
        if len(lines) != (expected := len(references[first])):
            counts = f"{len(lines)} sentences, but {first} has {expected}"
            raise ValueError(f"{path}: {counts}; is it all of that test set?")
        _warn_of_forms((path, lines), (first, references[first]))
    changed = 0
    for side_files in (references, translations):
        for path, lines in side_files.items():
            side_files[path], count = scoring.composed(lines)
            changed += count
            if count:
                change = f"letters and accents of {count} lines are composed (NFC)"
                print(f"{path}: {change} before scoring", file=sys.stderr)
    language = _language(first, references[first], language)
    source = read_lines(args.source) if args.source else None
    shared = references[first], language, source, args.yisi_model, args.yisi_layer
    further = [references[path] for path in others]
    lowercase = args.lowercase or bool(args.data and lowercased(args.data, side))
    with_models = {"comet": f"comet:{args.comet_model}"} if args.comet_model else {}
    systems = [System(name, paths, {metric: [] for metric in metrics}) for name, paths in files.items()]
    missing: dict[str, str] = {}
    for system in systems:
        for path in system.files:
            text = Texts(translations[path], *shared, lowercase=lowercase, others=further, composed=bool(changed))
            for metric in metrics:
                try:
                    if metric not in missing:
                        system.results[metric].append(find(with_models.get(metric, metric)).compute(text))
                except ValueError as error:
                    missing[metric] = str(error).splitlines()[0]
    return systems, missing


def _references(path: Path) -> list[str]:
    lines = read_lines(path)
    if not lines:
        raise ValueError(f"{path}: empty file")
    if scoring.has_columns(lines):
        raise ValueError(f"{path}: columns, with a tab in every line; give each reference as a file, --ref A B")
    if count := sum("\t" in line for line in lines):
        warn(f"{path}: tabs in {count} lines are read as spaces; are they columns?")
    if 10 * (count := sum(not line.strip() for line in lines)) > len(lines):
        warn(f"{path}: {count} of {len(lines)} lines are empty; are their translations missing?")
    return lines


def _warn_of_forms(*both: tuple[Path, list[str]]) -> None:
    """Warn of two files of which one has subwords, tokens, typographic quotes or characters that no eye sees, and the
    other has not."""
    if all(spaced_stops(lines) and len(lines) >= TOKENIZED_LINES for _, lines in both):
        warn(f"{both[0][0]}: as the references, has spaces before full stops; {TOKENIZED.format('LANGUAGE')}")
    for (file, lines), (other_file, other_lines) in (both, reversed(both)):
        if (here := scoring.quoted(lines)) > len(lines) / 20 and here > 4 * (there := scoring.quoted(other_lines)):
            counts = f"has typographic quotes in {here} lines, {other_file} in {there}"
            warn(f"{file}: {counts}; for BLEU they are other words than those of a keyboard")
        if left := scoring.marks(lines) - scoring.marks(other_lines):
            marks = " and ".join(sorted(left))
            warn(f"{file}: has {marks}, unlike {other_file}; give raw text for both")
        if hidden := scoring.unseen(lines, other_lines):
            named = ", ".join(f"U+{ord(letter):04X} in {count} lines" for letter, count in hidden.items())
            warn(f"{file}: has characters that no eye sees, unlike {other_file}: {named}")


def _language(path: Path, references: list[str], code: str) -> str:
    """The language that is given, or that the letters of the references show where BLEU needs to know it."""
    language, why = scoring.language_by_script(references), "sacreBLEU has no tokenizer for it"
    if not language or base_language(code) in TOKENIZERS:
        return code
    if code and language in TOKENIZERS:
        why = f"scored as {code}; for its tokenizer give --language {language}"
    elif language in TOKENIZERS:
        try:
            scoring.sacrebleu_metric("bleu", language)
            print(f"{path}: taken for {language} by its letters; --language CODE names another", file=sys.stderr)
            return language
        except ValueError as error:
            why = str(error)
    warn(f"{path}: in {language} by its letters ({why}): all scores but chrF compare whole phrases, not words")
    return code


def _row(system: System, seeds: bool, tested: str | None, resamples: np.ndarray | None) -> dict[str, Any]:
    """A system's figures, ready for JSON; ``resamples`` are those of the metric that is tested."""
    files = list(map(str, system.files))
    row: dict[str, Any] = {"system": system.name}
    row |= {"files": files, "seeds": len(files)} if seeds else {"file": files[0]}
    results = {metric: by_file for metric, by_file in system.results.items() if len(by_file) == len(system.files)}
    for metric, by_file in results.items():
        scores = [result.score for result in by_file]
        row[metric] = round(mean(scores), 4)
        if seeds:
            row[f"{metric}_seeds"] = [round(score, 4) for score in scores]
            row[f"{metric}_deviation"] = round(stdev(scores), 4) if len(scores) > 1 else None
        elif metric == tested and resamples is not None:
            row[f"{metric}_interval"] = [round(bound, 4) for bound in significance.interval(resamples)]
    if "bleu" in results:
        sums = [result.statistics.sum(0) for result in results["bleu"]]
        row["length_ratio"] = round(mean(float(counts[0] / max(counts[1], 1)) for counts in sums), 4)
    row["signatures"] = {metric: by_file[0].signature for metric, by_file in results.items()}
    return row


def _compare(
    rows: list[dict[str, Any]], systems: list[System], metric: str, test: str, resamples: dict[str, np.ndarray]
) -> None:
    """Add ``delta`` and ``p`` of every system against the first; p is None where there is nothing to compare."""
    first, *_ = baseline = systems[0].results[metric]
    for row, system in zip(rows, systems, strict=True):
        results = system.results[metric]
        delta = mean(result.score for result in results) - mean(result.score for result in baseline)
        if results is baseline or (test == "seeds" and min(len(results), len(baseline)) < 2):
            p = None
        elif test == "seeds":
            p = significance.seed_difference(*([result.score for result in side] for side in (baseline, results)))[1]
        elif test == "bootstrap":
            p = significance.p_value(resamples[systems[0].name], resamples[system.name], delta)
        else:
            tests = {"randomization": significance.randomization_p_value, "sign": significance.sign_test_p_value}
            p = tests[test](first.statistics, results[0].statistics, first.combine)
        row |= {"delta": round(delta, 4), "p": None if p is None else float(f"{p:.4g}")}


def _legend(test: str, compared: bool, tested: str | None) -> str:
    if test == "seeds":
        return "±: deviation over seeds" + "; p: Welch's t-test over seeds against the baseline, two-sided" * compared
    if not tested:
        return "no interval: METEOR has no counts by sentence to resample"
    names = {"bootstrap": "paired bootstrap", "randomization": f"approximate randomization, {TRIALS:,} trials,"}
    p = names.get(test, "sign test (Collins et al., 2005)")
    interval = f"±: 95% interval of {RESAMPLES:,} bootstrap resamples of the sentences, seed {SEED}"
    return interval + f"; p: {p} against the baseline, two-sided" * compared


def _table(rows: list[dict[str, Any]], metrics: list[str], tested: str | None, seeds: bool) -> str:
    columns = [["system", *(one_line(row["system"]) for row in rows)]]
    for metric in metrics:
        digits, heading = find(metric).digits, find(metric).heading
        cells = [f"{row[metric]:.{digits}f}" for row in rows]
        if seeds:
            deviations = [row[f"{metric}_deviation"] for row in rows]
            cells = [c if d is None else f"{c} ± {d:.{digits}f}" for c, d in zip(cells, deviations, strict=True)]
        columns.append([heading, *cells])
        if metric == tested and not seeds:
            bounds = [row[f"{metric}_interval"] for row in rows]
            columns.append(["±", *(f"{(high - low) / 2:.{digits}f}" for low, high in bounds)])
    if "bleu" in metrics:
        columns.append(["length", *(f"{row['length_ratio']:.3f}" for row in rows)])
    if tested and "delta" in rows[0]:
        deltas = [f"{row['delta']:+.{find(tested).digits}f}" for row in rows[1:]]
        columns.append([f"Δ {find(tested).heading}", "baseline", *deltas])
        ps = [row["p"] for row in rows]
        columns.append(["p", *("" if p is None else f"{p:.3f}" if p >= 0.001 else "<0.001" for p in ps)])
    if seeds:
        columns.append(["seeds", *(str(row["seeds"]) for row in rows)])
    return in_columns(list(zip(*columns, strict=True)))
