"""Score translations: BLEU with its 95% bootstrap interval, chrF, TER, length ratio, significance.

A translation is detokenized text, one sentence a line, or the output of fairseq-generate as it is; with --data,
subwords and tokens of the latter are undone as the data were prepared. References are raw text. BLEU and chrF are
cased. With --baseline, p is the probability that a BLEU difference as large comes by chance (paired bootstrap,
two-sided). BLEU's tokenizer is sacreBLEU's for the language: zh for Chinese, ja-mecab for Japanese, ko-mecab for
Korean, 13a for all others.
"""

import argparse
import json
from pathlib import Path
from typing import Any

EXAMPLE = (
    "fairseq-diverse score --hyp disagreement.log --baseline baseline.log --ref test.de --data data/multi30k_en_de"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hyp", type=Path, nargs="+", required=True, metavar="FILE", help="translations to score")
    parser.add_argument("--ref", type=Path, required=True, metavar="FILE", help="references, raw text")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="translations to compare with")
    parser.add_argument("--data", type=Path, metavar="DIR", help="prepared data set, to undo subwords and tokens")
    parser.add_argument("--language", help="of the target (default: that of --data)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores to FILE as well")


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.evaluation.metrics import METRICS
    from fairseq_diverse.evaluation.significance import RESAMPLES, SEED
    from fairseq_diverse.files import atomic_write

    language = args.language or _language(args.data)
    systems = _systems(args.hyp, args.baseline, args.ref, args.data, language)
    print(_table(systems))
    print()
    for metric, signature in systems[0]["signatures"].items():
        print(f"{METRICS[metric]:<5} {signature}")
    print(f"±: 95% interval of {RESAMPLES:,} bootstrap resamples of the sentences, seed {SEED}", end="")
    print("; p: paired bootstrap against the baseline, two-sided" if args.baseline else "")
    if args.json:
        result = {"ref": str(args.ref), "resamples": RESAMPLES, "seed": SEED, "systems": systems}
        with atomic_write(args.json) as f:
            f.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def _systems(
    hyps: list[Path], baseline: Path | None, ref: Path, data: Path | None, language: str
) -> list[dict[str, Any]]:
    """One dictionary a system, the baseline first."""
    from fairseq_diverse.evaluation.metrics import read_translations, score
    from fairseq_diverse.evaluation.significance import bootstrap_scores, interval, p_value
    from fairseq_diverse.files import read_lines

    references = read_lines(ref)
    if not references:
        raise ValueError(f"{ref}: empty file")
    paths = [path for path in hyps if path != baseline]
    translations = {path: read_translations(path, data) for path in ([baseline] if baseline else []) + paths}
    for path, lines in translations.items():
        if len(lines) != len(references):
            raise ValueError(
                f"{path}: {len(lines)} sentences, but {ref} has {len(references)}; is it all of that test set?"
            )
    systems: list[dict[str, Any]] = []
    first = None
    for path, lines in translations.items():
        scores = score(lines, references, language)
        resampled = bootstrap_scores(scores.statistics["bleu"], "bleu", language)
        system = {
            "file": str(path),
            **scores.as_dict(),
            "bleu_interval": [round(bound, 4) for bound in interval(resampled)],
        }
        if baseline:
            first = first or (scores.bleu, resampled)
            delta = scores.bleu - first[0]
            p = None if path == baseline else round(p_value(first[1], resampled, delta), 4)
            system |= {"delta": round(delta, 4), "p": p}
        systems.append(system)
    return systems


def _language(data: Path | None) -> str:
    from fairseq_diverse.preparation.pipeline import read_record

    return read_record(data)["target"] if data else ""


def _table(systems: list[dict[str, Any]]) -> str:
    rows = [["system", "BLEU", "±", "chrF", "TER", "length", "Δ BLEU", "p"]]
    for system in systems:
        low, high = system["bleu_interval"]
        row = [system["file"], f"{system['bleu']:.2f}", f"{(high - low) / 2:.2f}"]
        row += [f"{system['chrf']:.2f}", f"{system['ter']:.2f}", f"{system['length_ratio']:.3f}"]
        if "delta" in system:
            row += ["baseline", ""] if system["p"] is None else [f"{system['delta']:+.2f}", f"{system['p']:.3f}"]
        rows.append(row)
    rows[0] = rows[0][: len(rows[1])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    return "\n".join(lines)
