"""Random table files, names of rows and summaries: refused with their name, or accepted and harmless."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairseq_diverse.experiments.flags import common, machinery
from fairseq_diverse.experiments.kinds.kind import KINDS
from fairseq_diverse.experiments.kinds.translation import generation
from fairseq_diverse.experiments.run import DataSet, Run
from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.runs.folder import read_summary
from fairseq_diverse.experiments.runs.plan import steps_of
from fairseq_diverse.experiments.tables.file import OF_COST, ROW_KEYS, TABLE_KEYS, SizeFile
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.reports import formats
from tests.fuzz.budget import budget
from tests.unit.conftest import SIZE, TABLE
from tests.unit.test_report import summary
from tests.unit.views import view

WHOLE = summary(1, 20, 5.0) | {"system": "first", "updates": 30, "valid_nll": {"last": 3.0, "best": 2.0}}
FLAGS = ("lr", "dropout", "max-update", "seed", "save-dir", "fp16", "arch", "no-save", "beam")
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.sampled_from(
        ["none", "1e9", "${oc.env:HOME}", "f(1)", "--seed=3", "a: &a [*a]", "../x", "multi30k_en_de", "\0", "2**9"]
    ),
)
KEYS = st.one_of(
    st.sampled_from(
        [*TABLE_KEYS, *ROW_KEYS, *SizeFile.__struct_encode_fields__, *FLAGS, *OF_COST, *KINDS["translation"].published]
    ),
    SCALARS,
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=5
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    (folder / "size.yaml").write_text(SIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRSEQ_DIVERSE_RUNS", str(folder / "runs"))
        yield folder


@pytest.fixture(scope="module")
def rows(folder):
    (folder / "table.yaml").write_text(TABLE % (folder / "size.yaml"))
    return list(load_table(str(folder / "table.yaml")).rows.values())


def check(path, settings=()) -> None:
    """A table is refused in one line with its name, or its rows run in their folders with the run's own flags."""
    try:
        rows = load_table(str(path), settings=list(settings)).rows
    except ValueError as error:
        text = str(error)
        assert str(path.parent) in text or "--set" in text
        assert "\n" not in text
        return
    runs = path.parent / "runs"
    for row in rows.values():
        run = Run(row, 7, DataSet("d", runs / "data/d", "en", "de", "h"), True, runs / "a" / "seed7")
        for step, own in (
            ("train", machinery(row, 7, run.checkpoints)),
            ("generate", generation(row, run.checkpoint, "test", False)),
        ):
            words = steps_of(run, {}).get(step, [])
            for flag, value in (own | common("en", "de", True)).items() if words else ():
                given = [index for index, word in enumerate(words) if word == f"--{flag}"]
                assert len(given) == (value is not False)
                assert not isinstance(value, str) or words[given[0] + 1] == value
            assert not any("\0" in word or "${" in word for word in words)
        assert row.key("h") == row.key("h") and row.max_update > 0


@given(st.dictionaries(KEYS, VALUES, max_size=3))
@budget(0.8)
def test_any_values_are_a_table_or_refused_by_name(folder, content):
    path = folder / "values.yaml"
    whole = {"data": "multi30k_en_de", "size": str(folder / "size.yaml"), "rows": {"a": None}}
    path.write_text(yaml.safe_dump(whole | content, allow_unicode=True), encoding="utf-8", errors="replace")
    check(path)


@given(st.dictionaries(st.sampled_from(FLAGS) | KEYS, VALUES, max_size=2), st.text(max_size=20), SCALARS)
@budget(0.8)
def test_any_flags_of_a_row_or_settings_are_accepted_or_refused_by_name(folder, flags, setting, value):
    path = folder / "flags.yaml"
    text = (TABLE % (folder / "size.yaml")).replace(
        "  first:", f"  first: {json.dumps(flags, default=str, skipkeys=True)}"
    )
    path.write_text(text, encoding="utf-8")
    check(path, [f"{setting}={value}"])


@given(st.text(max_size=200) | st.text("a:1 \n-[]{}&*<!|>'\"%@?,#~\t", max_size=60) | st.binary(max_size=30))
@budget(0.8)
def test_any_text_is_a_table_or_refused_by_name(folder, text):
    path = folder / "text.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
    check(path)


@given(
    st.text(max_size=30) | st.text("./\\a ~$-\n\0", max_size=12) | st.integers(0, 500).map(lambda count: "ä" * count)
)
@budget(0.5)
def test_no_name_of_a_row_leaves_the_folder_of_runs(folder, name):
    path = folder / "names.yaml"
    content = {"data": "multi30k_en_de", "size": str(folder / "size.yaml"), "rows": {name: None}}
    path.write_text(json.dumps(content), encoding="utf-8")
    try:
        rows = list(load_table(str(path)).rows.values())
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return
    (run,) = find_runs(rows, [1], dry=True)
    assert run.directory.resolve().parent.parent == (folder / "runs").resolve()
    for made in (run.directory.parent, folder / f"{rows[0].name}-seed4294967295.json"):
        assert made.parent in (folder, folder / "runs") and len(f".{made.name}.4194304.tmp".encode()) <= 255


@given(st.dictionaries(st.sampled_from(sorted(WHOLE)), VALUES, max_size=2), st.integers(0, 20_000))
@budget(0.8)
def test_any_change_of_a_summary_is_reported_or_refused_by_name(folder, rows, changes, end):
    path = folder / "first-seed1.json"
    path.write_text(json.dumps(WHOLE | changes, default=str, skipkeys=True)[: end + 1], encoding="utf-8")
    try:
        content = read_summary(path, "save it again")
    except ValueError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
        return
    other = WHOLE | {"data_hash": content["data_hash"]}
    shown = view(rows, {"first": [content], "second": [other]})
    assert formats.as_text(shown.cells, "", shown.notes)
