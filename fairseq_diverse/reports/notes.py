"""Notes below tables: what differences over seeds are, how runs differ, where and with what they ran."""

from collections.abc import Mapping, Sequence

from fairseq_diverse.experiments.kinds.kind import Kind
from fairseq_diverse.experiments.kinds.lines import SMALLEST, Line, Measure, Summary, deciding_last, grouped
from fairseq_diverse.experiments.run import Row
from fairseq_diverse.experiments.runs.provenance import commits_of, machine, starts_of
from fairseq_diverse.metrics.seeds import compared
from fairseq_diverse.metrics.significance import RESAMPLES
from fairseq_diverse.reports.columns import SPEEDS, one_seed, over_examples_heading

UNEVEN = 3.0  # times the deviation of all others: the plan of the comparison shows the table without such a row, too
FAR, GUESSED = 1.5, 11.5  # times the best validation NLL; nats a token, more than guessing among 90,000 words needs
DIVIDED = "divided by the baseline's; comparable only if all runs had the machine to themselves"
OF_SPEEDS = {  # notes by heading
    "words/s": "words/s: target subwords in training",
    "minutes an epoch": "minutes an epoch: training alone, without validation and saving",
    "speed": f"speed, decoding: words/s in training and in translation (of the first test set), {DIVIDED}",
}


def table_notes(
    kind: Kind, rows: Sequence[Row], measures: Sequence[Measure], lines: Sequence[Line], headings: Sequence[str]
) -> list[str]:
    """What the figures of the columns that are shown mean, and what they were measured with."""
    done = [line for line in lines if line.seeds]
    data = dict.fromkeys(row.published_on for row in rows if row.published and row.published_on)
    published = [f"published figures: measured on {', '.join(data)}"] if data else []
    if not done:
        return published
    text, in_tasks = [kind.opening] * bool(kind.opening), kind.task_table(rows)
    if not in_tasks:
        text += seeds_notes(done, [m for m in measures if f"Δ {m.name}" in headings])
        if tested := [m for m in measures if m.compared and over_examples_heading(kind, measures, m) in headings]:
            tests = [f"paired bootstrap, {RESAMPLES:,} resamples" if m.resampled else "paired t-test" for m in tested]
            if len(tested) > 1:
                named = (f"{m.name} by {'a ' * (not m.resampled)}{test}" for m, test in zip(tested, tests, strict=True))
                tests = [*named, "each system averaged over its seeds"]
            text.append(f"p over {kind.items} (other test {kind.items}, the same trainings): {'; '.join(tests)}")
        scaled = [m for m in measures if m.scale and {m.name, f"Δ {m.name}"} & {*headings}]
        text += [f"{m.name}: {m.scale}, {m.better}" for m in scaled]
        text += [note for heading, note in OF_SPEEDS.items() if heading in headings]
        text += no_speed_note(done) if SPEEDS.keys() & {*headings} else []
    text += kind.notes(done)
    text += [f"seeds a row: {', '.join(sorted({str(line.seeds) for line in done}))}"] if in_tasks else []
    text += runs_notes(done)
    if "±" not in kind.opening and not kind.beside and one_seed(done):
        text += [f"{m.name} ±: half the 95% bootstrap interval" for m in measures if m.resampled]
    elif "±" not in kind.opening and not kind.beside:
        with_deviation = [m for m in measures if m.deviation]
        shown = [m for m in with_deviation if (m.heading or m.name) in headings] or with_deviation[:1]
        text += [f"{', '.join(m.name for m in shown)} ±: standard deviation over seeds"] * bool(shown)
    return text + kind.signatures(done, headings) + commits_note(done) + published


def verdict_notes(
    lines: Sequence[Line], measures: Sequence[Measure], headings: Sequence[str], beside: Mapping[str, str]
) -> list[str]:
    """What the verdict, and the columns that are shown, are about; ``beside``: how the runs of other tables differ."""
    done, (*others, judge) = [line for line in lines if line.seeds], deciding_last(measures)
    together = f" ({count})" if (count := tested_rows(done, [judge.key])) else ""
    hold = f"its intervals hold for all rows of a baseline at once{together}"
    text = [
        f"Δ {judge.name}: {judge.scale} against the baseline, {judge.better}",
        f"helps, hurts: p < 0.05 by Dunnett's test over seeds; {hold}",
        "not resolved: these seeds show no difference, which does not show that there is none",
    ]
    if "Welch p" in headings:
        text.append("Welch p: of the row and its baseline alone, whose standard deviations may differ; no verdict")
    interval = f"in brackets its 95% interval over seeds, as that of {judge.name}; no verdict"
    text += [f"Δ {measure.name}: {interval}" for measure in others if f"Δ {measure.name}" in headings]
    for table in (table for table in beside if f"Δ {judge.name}: {table}" in headings):
        of = f"of the row of that name in that table, against its baseline there; {beside[table]}"
        text.append(f"Δ {judge.name}: {table}: {of}")
    text += seeds_notes(done, [judge])[1:]
    if "training speed" in headings:
        text.append(f"training speed: target subwords a second, {DIVIDED}")
        text += no_speed_note([line for line in done if line.baseline])
    return text + runs_notes(done) + commits_note(done)


def seeds_notes(lines: Sequence[Line], measures: Sequence[Measure]) -> list[str]:
    """What differences over seeds are, those of these measures, and the smallest that could have been seen."""
    shown = [line for line in lines if line.differences] if measures else []
    if not shown:
        return []
    against = f"Δ against {', '.join(dict.fromkeys(line.baseline for line in shown))}"
    keys = [measure.key for measure in measures]
    if not any(line.differences[key].test for line in shown for key in keys):
        return [f"{against}, of one seed: nothing is tested over seeds, nothing has a star"]
    p = f"p of Dunnett's test over seeds of all rows against their baseline ({tested_rows(shown, keys)})"
    text = [f"{against}: mean over seeds ± standard error over seeds, in brackets {p}; *: p < 0.05, **: p < 0.01"]
    if designs := grouped((design, line.name) for line in shown if (design := _design(line, measures))):
        named = [f"{', '.join(names)}: {design}" for design, names in designs.items()]
        text.append(f"{SMALLEST}: {'; '.join(named if len(named) > 1 else designs)}")
    for measure in measures:
        ratios = {line.baseline: line.differences[measure.key].baseline_ratio or 0.0 for line in shown}
        ratios |= {line.name: line.differences[measure.key].ratio or 0.0 for line in shown}
        if wide := [f"{name} ({ratio:.1f} times)" for name, ratio in ratios.items() if ratio > UNEVEN]:
            text.append(
                f"the test assumes that rows vary alike over seeds, but in {measure.unit or measure.name} these vary "
                f"more than {UNEVEN:.0f} times as much as all others: {', '.join(wide)}. Their p is too small, and "
                "that of all rows if one of them is the baseline; compare Welch p in --verdict, and --without ROW"
            )
    return text


def _design(line: Line, measures: Sequence[Measure]) -> str:
    """The smallest differences that could have been seen, in words; empty where nothing can be tested."""
    tests = [(m, test) for m in measures if (test := line.differences[m.key].test) and test.p is not None]
    smallest, spread = (
        ", ".join(f"{getattr(test, name):.{m.digits}f} {m.unit or m.name}" for m, test in tests)
        for name in ("smallest", "deviation")
    )
    return f"{smallest} (standard deviation over seeds {spread})" * bool(tests)


def tested_rows(lines: Sequence[Line], keys: Sequence[str]) -> str:
    """How many rows are tested together, by baseline where it differs."""
    words: dict[str, str] = {}
    for key in keys:
        tested = [line for line in lines if (difference := line.differences.get(key)) and difference.test]
        counts = {line.baseline: line.differences[key].systems for line in tested}
        for baseline, names in grouped((line.baseline, line.name) for line in tested).items():
            count = counts[baseline]
            text = f"{count} row{'s' * (count != 1)}"
            words[baseline] = text + f", {len(names)} of them shown" * (len(names) < count)
    several = len(set(words.values())) > 1
    return "; ".join(f"{name}: {text}" for name, text in words.items()) if several else next(iter(words.values()), "")


def runs_notes(lines: Sequence[Line]) -> list[str]:
    """How the runs of finished rows differ from what the table says, where and with which versions they ran."""
    text = differing_seeds_note(lines)
    if early := [why for line in lines if (why := line.facts.get("ended_early"))]:
        text.append(f"updates until training ended, by seed: {'; '.join(early)}")
    ends = [(f"{line.name} seed {run['seed']}", nll["last"], nll.get("best", nll["last"]))
            for line in lines for run in line.runs if (nll := run.get("valid_nll"))]  # fmt: skip
    # NaN is not below, either
    if wrong := [f"{run} {last:.2f} ({best:.2f})" for run, last, best in ends if not last <= min(FAR * best, GUESSED)]:
        why = "training diverged, or fits its data too closely: validation NLL a token at the end (and the best)"
        text.append(f"{why}: {', '.join(wrong)}")
    text += machines_note(lines)
    rows = grouped((version, line.name) for line in lines for version in versions(line.runs))
    by_package = grouped((version.split()[0], version) for version in rows)
    differing = [version for group in by_package.values() if len(group) > 1 for version in group]
    if several := [f"{version} ({', '.join(rows[version])})" for version in differing]:
        text.append(f"runs with different versions, which alone may change a score: {'; '.join(several)}")
    return text


def differing_seeds(line: Line) -> dict[str, list[int]]:
    """Where a row and its baseline have not the same seeds: ``compared``, those that the difference is of, if not all,
    else ``other_seeds``, the row's."""
    before, after = ([run["seed"] for run in side] for side in (line.baseline_runs, line.runs))
    if not before or set(before) == set(after):
        return {}
    chosen = compared(before, after)[1]
    return {"compared" if set(chosen) & set(before) and min(len(before), len(after)) == 1 else "other_seeds": chosen}


def differing_seeds_note(lines: Sequence[Line]) -> list[str]:
    """Which rows are compared with one seed of the baseline, and which have other seeds than it."""
    texts = {
        "compared": "one seed on a side: Δ and p are of the seed that row and baseline share",
        "other_seeds": "other seeds than the baseline's; all of both are used",
    }
    notes = []
    for key, text in texts.items():
        rows = grouped((", ".join(map(str, differing_seeds(line)[key])), line.name)
                       for line in lines if key in differing_seeds(line))  # fmt: skip
        named = [f"{', '.join(names)} {seeds}" for seeds, names in rows.items()]
        notes += [f"{text}: {'; '.join(named)}"] if named else []
    return notes


def ended_early(row: Row, runs: Sequence[Summary]) -> str:
    """How many updates a row's seeds ran, where its flags ended training before ``max-update``; empty otherwise."""
    updates = [run.get("updates", row.max_update) for run in runs]
    if min(updates) >= row.max_update:
        return ""
    counts = ", ".join(f"{count:,}" for count in updates)
    return f"{row.name} {counts} of {row.max_update:,} ({', '.join(f'--{flag}' for flag in row.ends_early)})"


def no_speed_note(lines: Sequence[Line]) -> list[str]:
    """Which rows have no speed, and why."""
    reasons = grouped((line.no_speed, line.name) for line in lines if line.no_speed)
    named = [f"{why}: {'all rows' if len(rows) == len(lines) else ', '.join(rows)}" for why, rows in reasons.items()]
    where = "where a row and its baseline did not run on one known machine with equal threads, memory and arithmetic"
    return [f"no speed (-) {where}; {'; '.join(named)}"] if named else []


def machines(runs: Sequence[Summary]) -> dict[str, list[int]]:
    """The seeds of a row by the machine that they ran on; a run that was resumed elsewhere is of several."""
    return grouped((place, run["seed"]) for run in runs for place in dict.fromkeys(map(machine, starts_of(run))))


def machines_note(lines: Sequence[Line]) -> list[str]:
    """Where the rows ran."""
    by_row = {line.name: machines(line.runs) for line in lines}
    placed = [(place, row, seeds, len(by_row[row])) for row in by_row for place, seeds in by_row[row].items()]
    rows = grouped((place, row + f" seed {', '.join(map(str, seeds))}" * (n > 1)) for place, row, seeds, n in placed)
    if len(rows) > 1:
        ran = "; ".join(f"{place}: {', '.join(names)}" for place, names in rows.items())
        return [f"runs of different machines or settings, which alone may change a score: {ran}"]
    return [f"ran on: {place}" for place in rows]


def versions(runs: Sequence[Summary]) -> list[str]:
    """The libraries that the runs were made with, of all their starts, and their versions."""
    starts = [start for run in runs for start in starts_of(run)]
    return sorted({f"{name} {version}" for start in starts for name, version in start.get("versions", {}).items()})


def commits_note(lines: Sequence[Line]) -> list[str]:
    """The commits of all lines, or versions."""
    commits = sorted({commit for line in lines for commit in commits_of(line.runs)})
    changed = " (+: with changed files)" * any("+" in commit for commit in commits)
    noun = "code" if any(commit.startswith("version") for commit in commits) else "commits"
    return [f"{noun}: {', '.join(commits)}{changed}"] if lines else []
