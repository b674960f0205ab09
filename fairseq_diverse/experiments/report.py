"""Measured beside published figures: means over seeds, differences to the baseline and how sure they are."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_diverse.experiments.comparison import (
    commits_note,
    commits_of,
    deviation,
    ended_early,
    ended_early_note,
    mark,
    of_shared_seeds,
    p_text,
    refuse_other_data,
    shared_seeds_note,
    without_empty_columns,
)
from fairseq_diverse.experiments.records import bleu_statistics
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.saved import Summary


def best_of_grids(rows: Sequence[Row], summaries: Mapping[str, list[Summary]]) -> list[Row]:
    """Of the rows that a grid made of one row, that with the lowest validation NLL where training ended, the mean over
    its seeds; of a grid without a finished run, the first. Baselines are the best of theirs.
    """

    def loss(row: Row) -> float:
        found = [s["valid_nll"]["last"] for s in summaries[row.name] if s.get("valid_nll")]
        return _mean(found) if found else np.inf

    families: dict[str, list[Row]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    best = {family: min(members, key=loss) for family, members in families.items()}
    of_name = {row.name: row.family for row in rows}
    return [dataclasses.replace(row, baseline=best[of_name[row.baseline]].name) for row in best.values()]


def compare(rows: Sequence[Row], summaries: Mapping[str, list[Summary]]) -> list[dict[str, Any]]:
    """One dictionary a row; rows without a finished run hold only ``row``, ``published`` and ``seeds`` (0).

    ``bleu``, ``chrf``, ``ter``, ``length_ratio`` and ``metrics`` (of the table) are means over seeds,
    ``bleu_deviation`` the standard deviation (None for one seed), ``bleu_interval`` half the 95% bootstrap interval of
    the mean. Row and baseline are compared over the seeds that both have (``compared``, None if that is all), over
    all of them if they share none: a seed decides on initial values and batches, and does as much as a mechanism.
    ``delta`` and ``p`` compare mean BLEU with the baseline's: every resample draws one set of sentences and
    averages each system's BLEU over its seeds. So p is about other test sentences, the deviation about other seeds.
    ``seed_p``, where both have several seeds, is that of a t-test of the seeds' BLEU: paired where the seeds are equal,
    Welch's otherwise.
    ``nll_delta``, its standard error ``nll_error`` and ``nll_p`` compare the negative log-likelihood of the test set,
    nats per sentence, each sentence averaged over seeds first. ``speed`` and ``decoding_speed`` are relative to the
    baseline's.

    Raises:
        ValueError: a row was run on other test data than the baseline.
    """
    from fairseq_diverse.metrics.significance import interval, p_value, paired_difference, seed_difference

    resamples = {row.name: _resampled(summaries[row.name]) for row in rows}
    lines = []
    for row in rows:
        of_row, first = summaries[row.name], summaries[row.baseline]
        line: dict[str, Any] = {"row": row.name, "published": row.published, "seeds": len(of_row)}
        lines.append(line)
        if not of_row:
            continue
        bleu = [summary["metrics"]["bleu"] for summary in of_row]
        low, high = interval(_over_seeds(resamples[row.name], of_row))
        line |= {
            "parameters": of_row[0]["parameters"],
            "bleu": float(np.mean(bleu)),
            "bleu_deviation": deviation(bleu),
            "bleu_interval": (high - low) / 2,
            **{key: _mean(s["metrics"][key] for s in of_row) for key in ("chrf", "ter", "length_ratio")},
            "metrics": {
                key: _mean(s["metrics"][key] for s in of_row)
                for key in row.metrics
                if all(key in s["metrics"] for s in of_row)
            },
            "words_per_second": _speed(of_row, "train"),
            "signature": of_row[0]["metrics"]["signatures"]["bleu"],
            "commits": commits_of(of_row),
            "ended_early": ended_early(row, of_row),
        }
        if row.name == row.baseline or not first:
            continue
        refuse_other_data(row, of_row, first)
        line["baseline"] = row.baseline
        before, after, line["compared"] = of_shared_seeds(first, of_row)
        paired = [s["seed"] for s in before] == [s["seed"] for s in after]
        old, new = ([s["metrics"]["bleu"] for s in group] for group in (before, after))
        line["delta"] = _mean(new) - _mean(old)
        drawn = _over_seeds(resamples[row.baseline], before), _over_seeds(resamples[row.name], after)
        line["p"] = p_value(*drawn, line["delta"])
        nll = [np.mean([s["test_nll"] for s in group], axis=0) for group in (before, after)]
        line["nll_delta"], line["nll_error"], line["nll_p"] = paired_difference(*nll)
        several = min(len(before), len(after)) > 1
        line["seed_p"] = seed_difference(old, new, paired=paired)[1] if several else None
        for key, step in (("speed", "train"), ("decoding_speed", "generate")):
            own, others = (_speed(group, step) for group in (of_row, first))
            line[key] = own / others if own and others else None
    return lines


def to_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each line; columns that nobody fills are left out."""
    from fairseq_diverse.metrics.catalogue import CATALOGUE, PUBLISHED

    extra = list(dict.fromkeys(key for line in lines for key in line.get("metrics", ())))
    rows = [["row", "parameters", "words/s", "BLEU", "chrF", "TER", *(CATALOGUE[key].heading for key in extra)]]
    rows[0] += ["length", "Δ BLEU", "p over seeds", "Δ NLL", "speed", "decoding", "seeds"]
    published = list(dict.fromkeys(key for line in lines for key in line["published"]))
    for line in lines:
        cells = [line["row"]]
        if line["seeds"]:
            spread = line["bleu_interval"] if _one_seed(lines) else line["bleu_deviation"]
            cells += [
                _formatted(line["parameters"], ","),
                _formatted(line["words_per_second"], ",.0f"),
                f"{line['bleu']:.2f} ± {spread:.2f}" if spread is not None else f"{line['bleu']:.2f}",
                f"{line['chrf']:.2f}",
                f"{line['ter']:.2f}",
                *(f"{line['metrics'][key]:.2f}" if key in line["metrics"] else "" for key in extra),
                f"{line['length_ratio']:.3f}",
            ]
            if "delta" in line:
                cells += [
                    f"{line['delta']:+.2f}{mark(line['p'])} ({p_text(line['p'])})",
                    "" if line["seed_p"] is None else f"{line['seed_p']:.3f}{mark(line['seed_p'])}",
                    f"{line['nll_delta']:+.3f}{mark(line['nll_p'])} ({p_text(line['nll_p'])})",
                    _formatted(line["speed"], ".2f"),
                    _formatted(line["decoding_speed"], ".2f"),
                ]
            else:
                cells += [""] * 5
            cells += [str(line["seeds"])]
        else:
            cells += ["not run", *[""] * (len(rows[0]) - 2)]
        rows.append(cells + [_shown(line["published"].get(key, "")) for key in published])
    rows[0] += [f"published {PUBLISHED.get(key, key)}" for key in published]
    return without_empty_columns(rows)


def notes(rows: Sequence[Row], lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """What the figures of the columns that are shown mean, and what they were measured with."""
    done = [line for line in lines if line["seeds"]]
    text = []
    baselines = list(dict.fromkeys(line["baseline"] for line in done if "baseline" in line))
    of_columns = {
        "Δ BLEU": f"Δ against {', '.join(baselines)}, in brackets p: BLEU by paired bootstrap over sentences, NLL by a "
        "paired t-test; *: p < 0.05, **: p < 0.01",
        "p over seeds": "p over seeds: t-test of the seeds' BLEU, paired where both have the same seeds, else Welch's",
        "Δ NLL": "NLL: nats per test sentence, lower is better",
        "words/s": "words/s: target subwords in training",
        "speed": "speed, decoding: words/s in training and translation by the baseline's; no comparison unless the "
        "runs had the machine to themselves alike",
    }
    text += [note for column, note in of_columns.items() if column in columns]
    text += shared_seeds_note(done) + ended_early_note(done)
    if done:
        text.append("±: half the 95% bootstrap interval" if _one_seed(lines) else "±: standard deviation over seeds")
    text += [f"BLEU: sacreBLEU {signature}" for signature in sorted({line["signature"] for line in done})]
    if done:
        text.append(commits_note(done))
    return text + published_note(rows)


def published_note(rows: Sequence[Row]) -> list[str]:
    """On which data the published figures were measured, one line; none where there are none."""
    published = list(dict.fromkeys(row.published_on for row in rows if row.published))
    return [f"published figures: measured on {', '.join(published)}"] if published else []


def _one_seed(lines: Sequence[Mapping[str, Any]]) -> bool:
    return max(line["seeds"] for line in lines) <= 1


def _resampled(summaries: Sequence[Summary]) -> dict[int, np.ndarray]:
    """BLEU of resampled test sentences, by seed."""
    from fairseq_diverse.metrics.significance import bootstrap_scores

    return {s["seed"]: bootstrap_scores(bleu_statistics(s["bleu_counts"]), "bleu", s["language"]) for s in summaries}


def _over_seeds(resamples: Mapping[int, np.ndarray], summaries: Sequence[Summary]) -> np.ndarray:
    return np.mean([resamples[s["seed"]] for s in summaries], axis=0)


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _speed(summaries: Sequence[Summary], step: str) -> float | None:
    """Mean over the seeds whose speed is known: one update, or a clock that was set back, leaves none."""
    known = [speed for s in summaries if (speed := s["words_per_second"].get(step)) is not None]
    return _mean(known) if known else None


def _formatted(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)


def _shown(figure: float | str) -> str:
    return f"{figure:.2f}" if isinstance(figure, float) else str(figure)
