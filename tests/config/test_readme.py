"""The commands in README and docs are accepted, and the README's main example runs as written."""

import dataclasses
import itertools
import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import pytest
import yaml
from _pytest.outcomes import Failed, Skipped
from fairseq import options

import fairseq_diverse
from fairseq_diverse.attention.registry import MECHANISMS, flag_name
from fairseq_diverse.cli import COMMANDS, build_parser, main
from fairseq_diverse.support.files import iterate_lines
from fairseq_diverse.support.paths import config_path
from tests.integration.commands import programs_as_forks, shared_data

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "benchmarks/README.md")
EXAMPLES = ("examples/images/README.md", "examples/joey_nmt/README.md")
FURTHER = [ROOT / page for page in (*PAGES, *EXAMPLES)]
TEXTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("results/**/*.md")), *FURTHER]

OURS = "$(fairseq-diverse user-dir)"
FAIRSEQ = {
    "fairseq-preprocess": options.get_preprocessing_parser,
    "fairseq-train": options.get_training_parser,
    "fairseq-validate": options.get_validation_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Page and line, and the words, of each command in the shell blocks, and of each of ours in the text, without
    launchers such as srun, variables and redirections."""
    text = path.read_text(encoding="utf-8")
    shell = [re.sub(r"<<'END'\n.*?^END$", "", block, flags=re.MULTILINE | re.DOTALL) for block in blocks(path)]
    lines = [line for block in shell for line in re.findall(r"(?:.*\\\n)*.+", block)]
    inline = r"`((?:fairseq-diverse [a-z]+ |(?:[A-Z]+=\S+ )*make |python -m |(?:scripts|data-prep)/[\w-]+\.sh)[^`]*)`"
    lines += re.findall(inline, text)
    for line in lines:
        where = f"{path.relative_to(ROOT)}:{text[: text.index(line)].count(chr(10)) + 1}"
        lexer = shlex.shlex(line.replace("\\\n", " ").replace("...", ""), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = [word for word in lexer if word not in ("$", "(", ")")]  # of $(which fairseq-train)
        for between, part in itertools.groupby(words, lambda word: word in ("|", "&&", ";")):
            command = [*itertools.takewhile(lambda word: word not in ("<", ">"), part)]
            if not between:
                ours = (number for number, word in enumerate(command) if word in {"fairseq-diverse", *FAIRSEQ})
                command = command[next(ours, 0) :]
                yield where, [*itertools.dropwhile(lambda word: re.match(r"\w+=", word), command)]


ALL = [(where, words) for path in TEXTS for where, words in commands(path) if words]
SHELL = ("awk", "cat", "cp", "cut", "do", "done", "echo", "export", "for", "head", "ls", "mkdir", "mv", "pip", "source")
CHECKED = {"fairseq-diverse", "make", "sed", "ct2-fairseq-converter", "mtdata", "opusfilter", *FAIRSEQ, *SHELL}
TABLES = ("README.md", "docs/tutorial.md")


def refused(check: Callable[[list[str]], object], programs: Iterable[str]) -> list[str]:
    """The commands of these programs that a check refuses, with their pages and lines."""
    problems = []
    for where, words in ALL:
        if words[0] in programs:
            try:
                check(words)
            except (SystemExit, Exception) as error:
                problems.append(f"{where}: {' '.join(words)}: {type(error).__name__} {error}")
    return problems


def test_fairseq_diverse_commands_parse():
    assert not refused(lambda words: build_parser(words[1:]).parse_args(words[1:]), ["fairseq-diverse"])


def test_every_variable_is_on_its_page():
    read_by_code = re.compile(r"environ(?:\.get\(|\[)\"(\w+)\"|\b(FAIRSEQ_DIVERSE_[A-Z]\w+)")
    files = [*ROOT.glob("fairseq_diverse/**/*.py"), *ROOT.glob("scripts/*.sh"), *ROOT.glob("tests/**/*.py")]
    found = {name for p in files for names in read_by_code.findall(p.read_text("utf-8")) for name in names if name}
    own = {n for n in found if not n.startswith(("SLURM_", "TEST_"))} - {"HOME", "PATH", "CI", "FORKS", "TQDM_DISABLE"}
    page = read("docs/environment.md")
    assert not [name for name in sorted(own) if f"`{name}`" not in page]


def check_script(words: list[str]) -> None:
    """That it, or a module, exists and knows its flags; a table's may be those of commands to which it passes them."""
    if words[:2] == ["python", "-c"]:
        compile(words[2], words[2], "exec")
        return
    module = words[words.index("-m") + 1] if words[0] in ("python", "torchrun") else None
    if module and find_spec(module.partition(".")[0]).origin != str(ROOT / module.partition(".")[0] / "__init__.py"):
        return  # of another package
    place = ROOT / (module.replace(".", "/") if module else words[0])
    files = [file for file in (place, place.with_suffix(".py"), place / "__main__.py") if file.is_file()]
    known = [file.read_text(encoding="utf-8") for file in files]
    assert known
    after = words[words.index(module) + 1 if module else 1 :]
    if place.name in ("table.sh", "figure.sh", "comparison.sh"):
        for command in ("prepare", "run", "report"):
            known += build_parser([command])._subparsers._group_actions[0].choices[command]._option_string_actions
    for flag in (word for word in after if word.startswith("--")):
        assert any(re.search(rf"{flag}\b", text) for text in known), flag
    if place.name == "table.sh" and after and after[0] != "PAPER":
        paper, number = after[:2]
        config_path("tables", f"{paper}-table{number}" if re.match("A?[0-9]", number) else f"{paper}-{number}")


def test_scripts_and_modules_exist_and_know_their_flags():
    others = {words[0] for _, words in ALL} - CHECKED
    assert {"python", "scripts/table.sh"} <= others and not refused(check_script, others)


def test_the_readme_has_the_table_of_the_tutorial():
    """Which test_the_tutorial_runs_as_written trains."""
    ours, tutorials = (re.search(r"<<'END'\n(.*?)^END$", read(name), re.MULTILINE | re.DOTALL)[1] for name in TABLES)
    assert yaml.safe_load(ours) == yaml.safe_load(tutorials)


def check_fairseq(words: list[str]) -> None:
    assert "--user-dir" not in words or words[words.index("--user-dir") + 1].startswith((OURS, "examples/"))
    if words[0] == "fairseq-validate":  # leaves out no example
        assert words[words.index("--required-batch-size-multiple") + 1] == "1"
    values = {"ARGS": "--arch=diverse_transformer", "RANK": "0", OURS: str(ROOT / "fairseq_diverse")}
    words = [values.get(word, word) for word in words]
    parser = FAIRSEQ[words[0]]()
    if words[0] == "fairseq-preprocess":  # has no model and no task's flags
        parser.parse_args(words[1:])
    else:
        options.parse_args_and_arch(parser, words[1:])


def test_fairseq_commands_parse():
    """In a fork, since --user-dir registers mechanisms."""
    fairseq_diverse.register()

    def parse() -> None:
        os.chdir(ROOT)
        if problems := refused(check_fairseq, FAIRSEQ):
            sys.exit("\n".join(problems))

    process = multiprocessing.get_context("fork").Process(target=parse)
    process.start()
    process.join()
    assert process.exitcode == 0, "the commands are above, in what was written to stderr"


def test_the_architectures_of_the_migration_are_those_of_fairseq():
    """Every setting of fairseq's architecture is that of ours."""
    fairseq_diverse.register()
    text = read("docs/migration.md")
    table = re.findall(r"^\| `((?:transformer|roberta)\w*.*)` \| (`diverse_.*`)", text, re.MULTILINE)
    pairs = []
    for theirs, ours in table:
        theirs, ours = re.split(r"`, `", theirs), re.findall(r"`(diverse_\w+)`", ours)
        pairs += itertools.zip_longest(theirs, ours, fillvalue=ours[0])
    assert len(pairs) == 7
    for pair in pairs:
        task = "masked_lm" if "roberta" in pair[0] else "translation"
        words = ["data", "--task", task, "--max-tokens", "9", "--arch"]
        parse, parser = options.parse_args_and_arch, options.get_training_parser
        of_theirs, of_ours = (vars(parse(parser(), [*words, arch])) for arch in pair)
        assert {key: of_ours[key] for key in of_theirs} == {**of_theirs, "arch": pair[1]}, pair


def test_every_link_leads_to_a_file_and_a_heading():
    for path in TEXTS:
        for text, link in re.findall(r"(?:\[([^\]]*))?\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            file, _, anchor = link.partition("#")
            if ":" in file:
                continue
            target = path.parent / file if file else path
            assert target.exists(), (path, link)
            content = target.read_text(encoding="utf-8") if anchor or path.name == "deviations.md" else ""
            slugs = [
                re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
                for heading in re.findall(r"^#+ (.+)$", content, re.MULTILINE)
            ]
            assert not anchor or anchor in slugs, (path, link)
            if path.name == "deviations.md" and (code := re.fullmatch("`(.*)`", text)):
                assert re.search(rf"^\s*((def|class) {code[1]}\b|{code[1]} =)", content, re.MULTILINE), link


def test_every_page_command_mechanism_and_flag_is_in_the_docs():
    """And the README is short."""
    readme, commands, text = (read(name) for name in ("README.md", "docs/commands.md", "docs/mechanisms.md"))
    assert len(readme.splitlines()) <= 150 and len(readme.split()) <= 1200
    assert not [path.name for path in (ROOT / "docs").glob("*.md") if f"(docs/{path.name}" not in readme]
    assert not [command for command in COMMANDS if f"fairseq-diverse {command}" not in commands]
    for name, mechanism in MECHANISMS.items():
        flags = [flag_name(name, field.name) for field in dataclasses.fields(mechanism.Settings)]
        assert any(re.search(rf"`[^`\n]*{flag} ", readme) for flag in flags), name
        for flag in flags:
            assert f"`{flag}`" in text, flag


def test_the_worked_example_is_the_file():
    block = re.search(r"```python\n(@register_mechanism.*?)```", read("docs/adding-a-mechanism.md"), re.DOTALL)[1]
    assert read("examples/temperature/__init__.py").endswith(block)


def test_what_github_and_the_docs_run_is_in_the_makefile():
    targets = re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE)
    assert not [(where, words) for where, words in ALL if words[0] == "make" and words[1] not in targets]
    for path in (ROOT / ".github").rglob("*.yml"):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert set(workflow) >= ({"jobs"} if path.parent.name == "workflows" else {"name", "description", "body"}), path
        for job in workflow.get("jobs", {}).values():
            assert job["runs-on"] and all(("uses" in step) != ("run" in step) for step in job["steps"]), path
        assert {*re.findall(r"run: make (\w+)", path.read_text(encoding="utf-8"))} <= {*targets}, path


def test_real_data_may_be_absent_on_github(monkeypatch, tmp_path):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("FAIRSEQ_DIVERSE_DATA", str(tmp_path))
    with pytest.raises(Failed, match="multi30k is absent"):
        shared_data("multi30k")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    with pytest.raises(Skipped, match="multi30k is absent"):
        shared_data("multi30k")


REFRESHED = re.search(r"report --refresh (.*)", read("Makefile"))[1].split()


def test_make_results_refreshes_every_page_with_a_table():
    pages = {path.relative_to(ROOT).as_posix() for path in TEXTS if "<!-- fairseq-diverse report " in path.read_text()}
    assert pages - {"docs/configs.md"} == set(REFRESHED)  # which explains the markers


@pytest.mark.parametrize("name", REFRESHED)
def test_the_tables_are_those_of_the_results(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / name).read_text(encoding="utf-8")
    (tmp_path / "text.md").write_text(text, encoding="utf-8")
    assert main(["report", "--refresh", str(tmp_path / "text.md")]) == 0
    assert (tmp_path / "text.md").read_text(encoding="utf-8") == text, "run: make results"


def run_script(script: str, smaller: dict[str, str], folder: Path, real: str = "") -> str:
    """What a page's commands print, with smaller sizes; programs are forks of this process, but for a real one."""
    for text, small in smaller.items():
        assert text in script
        script = script.replace(text, small)
    with programs_as_forks(folder) as forks:
        forks.pop(f"BASH_FUNC_{real}%%", None)
        environment = os.environ | forks | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        command = ["bash", "-c", f"set -euo pipefail\n{script}"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.integration
def test_the_main_job_runs_as_the_readme_says(tmp_path):
    """Toy corpus, then the README's preparation, fairseq's own commands with a tiny model, averaging, scores; the
    tutorial has the README's table."""
    table, plain = (b for b in blocks(ROOT / "README.md") if re.search("^(fairseq-diverse prepare|fairseq-train)", b))
    toy = "fairseq-diverse toy --out raw --sentences 200 --valid 20 --test 20\n"
    toy += "mv raw/valid.de raw/dev.de; mv raw/valid.en raw/dev.en\n"
    smaller = {
        "--arch diverse_transformer ": "--arch diverse_transformer_tiny --cpu --max-epoch 5 ",
        "fairseq-generate data": "fairseq-generate data --cpu",
    }
    printed = run_script(toy + table.splitlines()[0] + "\n" + plain, smaller, tmp_path, real="fairseq-train")
    assert re.search(r"generate\.log\s+\d", printed), printed[-2000:]
    assert "nrefs:1|case:mixed" in printed


@pytest.mark.integration
def test_the_tutorial_runs_as_written(tmp_path, monkeypatch):
    """All its commands, with fewer sentences, subwords and updates."""
    monkeypatch.delenv("FAIRSEQ_DIVERSE_RUNS", raising=False)
    smaller = {
        "--sentences 12000": "--sentences 150 --valid 8 --test 8",
        "--bpe-size 8000": "--bpe-size 500",
        "size: tiny": "size: tiny\nflags: {max-update: 3}\ngenerate: {max-len-b: 20, beam: 2}",
    }
    printed = run_script("\n".join(blocks(ROOT / "docs/tutorial.md")), smaller, tmp_path)
    table = printed[printed.index("My first comparison") :]
    assert re.search(r"^baseline +[\d.]+ .* 1$", table, re.MULTILINE)
    assert re.search(r"^evolving +[\d.]+ .*\(one seed\).* 1$", table, re.MULTILINE)
    for name in ("maps.png", "heads.png", "curves.png", "report.html"):
        assert (tmp_path / name).stat().st_size > 5000, name
    assert "effective rank" in table


SMALLER = {"sentences": "sentences 150 --valid 8 --test 8", "max-epoch": "max-update 2", "examples": "examples 2"}
SMALLER |= {"pairs": "pairs 60", "rationales": "rationales 60"}
MADE = {"trees": "checkpoints-toy/checkpoint_last.pt", "classification": "lengths.png", "rationales": "rationales.html"}


@pytest.mark.integration
@pytest.mark.parametrize("page", MADE)
def test_the_first_block_of_a_page_runs_as_written(page, tmp_path):
    script = blocks(ROOT / f"docs/{page}.md")[0]
    for flag, smaller in SMALLER.items():
        script = re.sub(rf"--{flag} \d+", f"--{smaller}", script)
    run_script(script, {}, tmp_path)
    assert (tmp_path / MADE[page]).is_file()


@pytest.fixture
def first_sentences(tmp_path, monkeypatch):
    """Those of the real CoLA."""
    monkeypatch.delenv("FAIRSEQ_DIVERSE_RUNS", raising=False)
    (tmp_path / "GLUE/CoLA").mkdir(parents=True)
    for name, count in {"train.tsv": 200, "dev.tsv": 30}.items():
        lines = itertools.islice(iterate_lines(shared_data("glue") / "CoLA" / name), count)
        (tmp_path / "GLUE/CoLA" / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize(
    ("begins", "made", "smaller"),
    [
        ("mkdir text", "t5.html", {"size: 1000": "size: 300", "max-update: 300": "max-update: 2", "--seeds 1,2 ": ""}),
        ("python -c", "tuned.html", {"=1000": "=300", "=1152": "=512", "max-update: 200": "max-update: 2"}),
    ],
)
def test_a_t5_is_trained_and_converted_as_its_page_says(begins, made, smaller, tmp_path, first_sentences):
    """tests/integration/test_t5.py and tests/unit/test_converting.py are the fast ones."""
    (block,) = (block for block in blocks(ROOT / "docs/t5.md") if block.startswith(begins))
    others = re.findall(r"^  evolving: .*\n", block, re.MULTILINE)
    printed = run_script(block, {**smaller, **dict.fromkeys(others, "")}, tmp_path)
    assert re.search(r"^\| CoLA Matthews( \| -?[\d.]+){2} \|$", printed, re.MULTILINE), printed[-2000:]
    assert (tmp_path / made).is_file()


@pytest.mark.integration
def test_a_bert_is_converted_and_fine_tuned_as_its_page_says(tmp_path, first_sentences):
    """On the first sentences of the real task; its first row."""
    (block,) = (block for block in blocks(ROOT / "docs/glue.md") if "BertWordPieceTokenizer" in block)
    others = re.findall(r"^  (?:realformer|evolving): .*\n", block, re.MULTILINE)
    assert len(others) == 2
    printed = run_script(block, {"max-update: 200": "max-update: 2", **dict.fromkeys(others, "")}, tmp_path)
    assert re.search(r"^\| CoLA Matthews( \| -?[\d.]+){2} \|$", printed, re.MULTILINE), printed[-2000:]
    assert (tmp_path / "bert.html").is_file()


def test_the_figures_of_heads_are_those_of_the_results():
    text = read("results/earlier.md")
    names = ("baseline", "simple", "em", "both", "dea-rhe", "lpea-rhe")
    found = {name: json.loads((ROOT / f"results/multi30k-heads/{name}-heads.json").read_text()) for name in names}
    for name in names[:4]:
        of_layer = found[name]["attentions"]
        parts = [[of_layer[f"encoder:{n}"]] for n in (1, 2, 3)]
        parts += [[of_layer[f"{component}:{n}"] for n in (1, 2, 3)] for component in ("decoder", "cross")]
        cells = []
        for part in parts:
            cosine, constant, rank = (mean(x[k] for x in part) for k in ("cosine", "constant share", "effective rank"))
            cells.append(f"{cosine:.2f}, {constant:.0%}, {rank:.0f}")
        assert f"| {name} | {' | '.join(cells)} |" in text
    for layer, note in enumerate((" (syntax on it)", "", "")):
        shares = [f"{mean(found[name]['redundant'][layer]):.3f}" for name in ("baseline", "dea-rhe", "lpea-rhe")]
        assert f"| {layer + 1}{note} | {' | '.join(shares)} |" in text
