"""Shared models give what their checkpoints give, from a folder or a hub; one line says what is wrong with a folder."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
import safetensors.torch
import torch
from fairseq.data import Dictionary
from huggingface_hub import ModelCard, constants, file_download, hf_api

import fairseq_diverse
from fairseq_diverse.checkpoints.loading import load_checkpoint, settings_of
from fairseq_diverse.checkpoints.shared import LOCAL
from fairseq_diverse.models.loading import load_models
from fairseq_diverse.models.sharing import SharedModel
from fairseq_diverse.preparation import Preprocessing
from tests.integration.commands import TINY, Fork, cli, run, runs_in

OWN = Path(__file__).resolve().parents[2] / "examples" / "temperature"
LAST = "--no-epoch-checkpoints --disable-validation"
ONCE = f"--max-update 1 --lr 0.01 {LAST} --cpu --num-workers 0 --seed 1 --optimizer adam"
TRANSLATES = f"{TINY} --max-update 20 {LAST}"
WORDS = "--task masked_lm --criterion masked_lm --sample-break-mode complete --tokens-per-sample 24"
MODELS = {  # data and flags of training
    "translation": ("pairs", f"{TRANSLATES} --evolving-on encoder --evolving-kernel 1"),
    "plain": ("pairs", TRANSLATES.replace("diverse_transformer_tiny", "transformer_tiny")),
    "trees": ("pairs", f"{TRANSLATES} --task translation_with_syntax --syntax dependency"),
    "reversed": ("pairs", f"{TRANSLATES} --source-lang de --target-lang en --routing em"),
    "language-model": (
        "text",
        f"{ONCE} --task language_modeling --arch transformer_lm --max-tokens 100 --tokens-per-sample 20 "
        "--decoder-layers 1 --decoder-embed-dim 8 --decoder-ffn-embed-dim 8 --decoder-attention-heads 2",
    ),
    "bert": ("text", f"{ONCE} {WORDS} --arch diverse_bert_tiny --max-tokens 600"),
    "roberta": ("text", f"{ONCE} {WORDS} --arch wang2021_evolving_roberta_tiny --max-tokens 600"),
    "glue": (
        "glue",
        f"{ONCE} --task sentence_prediction --criterion sentence_prediction --num-classes 2 --init-token 0 "
        "--arch diverse_roberta_tiny --max-positions 64 --max-tokens 600",
    ),
    "spans": (
        "spans",
        f"{ONCE} --task span_corruption --criterion cross_entropy --arch diverse_t5_tiny --tokens-per-sample 64 "
        "--max-tokens 600",
    ),
    "t5": ("pairs", f"{ONCE} --arch diverse_t5_tiny --max-tokens 600"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data ``pairs`` with trees, ``text``, ``spans`` and ``glue``; checkpoints of MODELS are made when needed."""
    out = tmp_path_factory.mktemp("sharing")
    cli("toy", "--out", out / "raw", "--sentences", 60, "--valid", 8, "--test", 8)
    raw = {f"--{split}": out / "raw" / split for split in ("train", "valid", "test")}
    files = [word for pair in raw.items() for word in pair]
    for name, words in (("pairs", ["--target", "de", *files]), ("text", files[:4])):
        cli("prepare", "--source", "en", *words, "--bpe-size", 60, "--out", out / name)
    cli("binarize-syntax", "--data", out / "pairs", "--dependency", f"{out}/raw/{{split}}.en.conllu")
    bpe = {"kind": "t5", "size": 100}
    (out / "spans.yaml").write_text(json.dumps({"source": "en", "tokenizer": "none", "normalize": False, "bpe": bpe}))
    cli("prepare", out / "spans.yaml", "--raw", out / "raw", "--out", out / "spans")
    for name in ("input0", "label"):
        for split in ("train", "valid"):
            lines = (out / f"raw/{split}.en").read_text().splitlines()
            text = lines if name == "input0" else [str(len(line) % 2) for line in lines]
            (out / f"{split}.{name}").write_text("\n".join(text) + "\n")
        files = [f"--{split}pref={out}/{split}.{name}" for split in ("train", "valid")]
        run("preprocess", "--only-source", *files, "--destdir", out / "glue" / name)
    return out


def checkpoint(folder, name):
    path = folder / name / "checkpoint_last.pt"
    if not path.exists():
        data, flags = MODELS[name]
        run("train", folder / data, *flags.split(), "--save-dir", folder / name)
    return path


def shared(folder, name, *flags):
    """Exported, and then moved away from its data."""
    if not (out := folder / "shared" / name).exists():
        cli("export", "--to", "safetensors", "--out", folder / "part", checkpoint(folder, name), *flags)
        out.parent.mkdir(exist_ok=True)
        (folder / "part").rename(out)
    return out


def translated(*words, cwd=None):
    return cli("translate", *words, "--cpu", "--max-len-b", 15, cwd=cwd).stdout


@pytest.mark.parametrize("name", ["translation", "plain", "trees", "reversed"])
def test_translations_are_those_of_the_checkpoint(folder, tmp_path, name):
    raw = folder / "raw" / f"test.{'de' if name == 'reversed' else 'en'}"
    common = ("--input", raw, "--nbest", 2, *(["--dependency", f"{raw}.conllu"] if name == "trees" else []))
    data = folder / MODELS[name][0]
    expected = translated("--checkpoint", checkpoint(folder, name), "--data", data, *common)
    assert len({line.split("\t")[1] for line in expected.splitlines()}) > 12  # scores
    assert translated("--model", shared(folder, name), *common, cwd=tmp_path) == expected
    if name == "translation":
        model = fairseq_diverse.load(shared(folder, name))
        lines = raw.read_text().splitlines()
        best = [line.split("\t")[2] for line in expected.splitlines()[::2]]
        assert model.translate(lines, cpu=True, max_len_b=15) == best
        assert model.translate(lines[:3], cpu=True, max_len_b=15, batch_size=1) == best[:3]


@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en")])
def test_text_is_prepared_for_the_models_direction(languages, monkeypatch):
    """The data may be of the other one."""
    steps = {
        side: SimpleNamespace(tokenize=str, segment=lambda text, language=language: f"{language} {text}")
        for side, language in (("source", "en"), ("target", "de"))
    }
    monkeypatch.setattr(Preprocessing, "load", lambda folder: Preprocessing("en", "de", "", {}, steps, steps))
    words = Dictionary()
    for word in ("en", "de", "text"):
        words.add_symbol(word)
    cfg = SimpleNamespace(source_lang=languages[0], target_lang=languages[1])
    task = SimpleNamespace(cfg=cfg, source_dictionary=words, target_dictionary=words)
    model = SharedModel(Path(), None, task, {})
    for side, language in zip(("", "target"), languages, strict=True):
        assert words.string(model.encode("text", side)) == f"{language} text"


@pytest.mark.parametrize("name", MODELS)
def test_weights_settings_and_subwords_are_those_of_the_checkpoint(folder, name):
    path, out = checkpoint(folder, name), shared(folder, name)
    (before,), _, task = load_models([path], folder / MODELS[name][0])
    model = fairseq_diverse.load(out)
    assert type(model.model) is type(before) and not model.model.training
    torch.testing.assert_close(dict(model.model.state_dict()), dict(before.state_dict()), rtol=0, atol=0)
    assert len(list(model.model.parameters())) == len(list(before.parameters()))  # the same are tied
    assert (out / "preprocess.json").exists() == (name != "glue")
    assert model.task.source_dictionary.symbols == task.source_dictionary.symbols
    settings = [dict(settings_of("model", load_checkpoint(one))) for one in (path, out)]
    portable = json.loads(json.dumps(settings[0]))  # without tuples
    differ = {key for key in portable if portable[key] != settings[1][key]}
    assert differ <= {*LOCAL, "plasma_path", "source_lang", "target_lang"}, differ
    line = (folder / f"raw/test.{'de' if name == 'reversed' else 'en'}").read_text().splitlines()[0]
    if name not in ("glue", "spans"):
        words = [task.source_dictionary[number] for number in model.encode(line)]
        assert words[-1] == "</s>" and "".join(words[:-1]).replace("@@", "") == line.replace(" ", "")
    if name not in ("trees", "glue"):  # which need trees, and a folder that `prepare` wrote
        program = re.search(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)[1]
        exec(program.replace('"DIR"', repr(str(out))), found := {})
        assert "translate" in program or (found["logits"].isfinite().all() and found["logits"].size(0) == 1)
    assert str(folder) not in (out / "config.json").read_text() + (out / "README.md").read_text()


def test_nothing_but_numbers_and_text_is_there(folder):
    out = shared(folder, "translation")
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    data = {"dict.de.txt", "dict.en.txt", "preprocess.json", "text/bpe.codes"}
    assert names == {"README.md", "config.json", "model.safetensors", *data}
    assert [path.stat().st_mode & 0o44 for path in out.glob("*.*")] == [0o44] * 6


def test_a_shared_model_is_trained_further_and_exported_again(folder, tmp_path, output_of):
    """As a checkpoint, by fairseq's programs and ours."""
    out, data = shared(folder, "translation"), folder / "pairs"
    flags = MODELS["translation"][1].replace("--max-update 20", "--max-update 1")
    run("train", data, *flags.split(), "--finetune-from-model", out, "--save-dir", tmp_path)
    for to, name, more in (("fairseq", "plain.pt", ()), ("safetensors", "again", ("--data", data))):
        output_of("export", "--to", to, "--out", tmp_path / name, shared(folder, "plain"), *more)
    text = ("--input", folder / "raw/test.en")
    expected = translated("--checkpoint", checkpoint(folder, "plain"), "--data", data, *text)
    assert translated("--checkpoint", tmp_path / "plain.pt", "--data", data, *text) == expected
    assert translated("--model", tmp_path / "again", *text) == expected


def test_parsers_of_this_machine_are_not_named(folder, tmp_path, error_of, output_of):
    """The folder of a parser is left out. Its name stays if it is that of a model; else the user gives the parser."""
    data = shutil.copytree(folder / "pairs", tmp_path / "pairs")
    for model, kept in (("/home/me/en_core_web_sm", "en_core_web_sm"), ("/home/me/own-1.0", None)):
        record = json.loads((folder / "pairs/preprocess.json").read_text())
        record["parsers"] = {"dependency": {"parser": "spacy", "model": model, "language": "en"}}
        (data / "preprocess.json").write_text(json.dumps(record))
        out = tmp_path / Path(model).name
        output_of("export", "--to", "safetensors", "--out", out, checkpoint(folder, "trees"), "--data", data)
        parsers = json.loads((out / "preprocess.json").read_text())["parsers"]
        assert parsers.get("dependency", {}).get("model") == kept
    said = error_of("translate", "--model", out, "--input", folder / "raw/test.en")
    assert "this model needs dependency trees: give --dependency FILE" in said


def test_a_full_disk_leaves_nothing(folder, tmp_path, monkeypatch, error_of):
    def full(*_, **__):
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    out = tmp_path / "out"
    shown = error_of("export", "--to", "safetensors", "--out", out, checkpoint(folder, "plain"))
    assert f"{out}/model.safetensors: cannot be written (Error while serializing: I/O error: No space" in shown
    assert not [*tmp_path.iterdir()]


def test_own_code_is_carried_named_and_not_run(folder, tmp_path):
    def command(*words, module="fairseq_diverse.cli"):
        done = Fork([sys.executable, "-m", module, *map(str, words)]).wait()
        return done.stderr.splitlines()[-1] if done.returncode else done.stdout

    flags = [*TINY.split(), "--user-dir", OWN, "--temperature-on", "encoder", "--save-dir", tmp_path / "x"]
    command(folder / "pairs", *flags, "--max-update", 2, module="fairseq_cli.train")
    words = ["export", "--to", "safetensors", "--out", tmp_path / "out", tmp_path / "x/checkpoint_last.pt"]
    assert "has the mechanism temperature; give its --user-dir" in command(*words)
    assert not (tmp_path / "out").exists()
    command(*words, "--user-dir", OWN)
    code = tmp_path / "out/code/temperature"
    assert (code / "__init__.py").read_bytes() == (OWN / "__init__.py").read_bytes()
    assert "`code/temperature`" in (tmp_path / "out/README.md").read_text()
    text = ("--input", folder / "raw/test.en", "--max-len-b", 9, "--cpu")
    said = command("translate", "--model", tmp_path / "out", *text)
    assert f"has the mechanism temperature of its author, in {code}, which is not run by itself: read that" in said
    expected = command("translate", "--checkpoint", words[-1], "--data", folder / "pairs", "--user-dir", OWN, *text)
    assert command("translate", "--model", tmp_path / "out", "--user-dir", code, *text) == expected != ""
    program = f"import sys; sys.path.insert(0, {str(code.parent)!r}); import temperature, fairseq_diverse; "
    program += f"shared = fairseq_diverse.load({str(tmp_path / 'out')!r}); lines = open({str(text[1])!r}).readlines(); "
    program += "print(*shared.translate(lines, max_len_b=9, cpu=True), sep=chr(10))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == expected, done.stderr


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def change(key, value):
    def changed(path):
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return changed


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.safetensors", cut, "model.safetensors: not the file that was exported: damaged, cut off or changed;"),
        ("dict.en.txt", cut, "dict.en.txt: not the file that was exported"),
        ("text/bpe.codes", Path.unlink, "text/bpe.codes: cannot be read (No such file or directory); get it again"),
        ("config.json", cut, "config.json: damaged, not whole JSON; get it again"),
        ("config.json", Path.unlink, "cannot be read as a model (no config.json); give a"),
        ("config.json", change("schema", 9), "of schema 9, written by fairseq-diverse 1.0.0; the one here reads up to"),
        ("config.json", change("format", "x"), "config.json: not of a model that `fairseq-diverse export` wrote"),
        ("config.json", change("files", {}), "config.json: damaged (files)"),
        ("config.json", change("files", {"model.safetensors": "", "../x": ""}), "not the file that was exported"),
        ("config.json", change("cfg", []), "config.json: damaged (TypeError: list indices"),
        ("config.json", change("tied", {"a": "b"}), "config.json: damaged (KeyError: 'b')"),
        ("config.json", change("args", {"adam_betas": "print(1)"}), "refused: its setting adam_betas = 'print(1)' is"),
    ],
)
def test_a_damaged_folder_is_one_line(folder, tmp_path, error_of, name, damage, message):
    out = shutil.copytree(shared(folder, "translation"), tmp_path / "copy")
    damage(out / name)
    for words in (["translate", "--model"], ["push", "--to", "me/x"]):
        assert message in error_of(*words, out, *(["--input", os.devnull] if words[0] == "translate" else []))


def test_impossible_requests_are_one_line(folder, tmp_path, error_of):
    path, out = checkpoint(folder, "plain"), shared(folder, "plain")
    bare = tmp_path / "bare"
    bare.mkdir()
    export = ["export", "--to", "safetensors", path, "--out"]
    for words, message in (
        ([*export, out], f"--out {out}: exists; name a new folder"),
        ([*export, tmp_path / "x", "--data", bare], f"{bare}: no binarized text of two languages"),
        ([*export, tmp_path / "x", "--data", folder / "text"], "text: no binarized text of two languages"),
        (["export", "--to", "safetensors", bare, "--out", tmp_path / "x"], "no folder of a run, with checkpoints/"),
        (["translate", "--model", out, "--data", out], "has its data; leave out --checkpoint and --data"),
        (["translate"], "what is to translate? Give --model DIR, or"),
        (["translate", "--model", "nosuch"], "nosuch: no such folder, and not USER/NAME of the Hugging Face hub"),
        (["translate", "--model", shared(folder, "bert"), "--input", os.devnull], "trained for another task than"),
        (["push", out, "--to", "name"], "--to name: a name on the Hugging Face hub is USER/NAME"),
    ):
        assert message in error_of(*words)
    assert not (tmp_path / "x").exists()


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as huggingface_hub needs to upload and download small files."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    commit = "a" * 40

    def answer(self, content=None, body=b"", **headers):
        body = json.dumps(content).encode() if content is not None else body
        self.send_response(200 if content is not None or body or headers else 404)
        for name, value in ({"Content-Length": len(body)} | headers).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        if self.path.startswith("/api/models/me/model/revision/"):
            siblings = [{"rfilename": name} for name in self.files]
            return self.answer({"id": "me/model", "sha": self.commit, "siblings": siblings})
        if self.path.startswith(f"/api/models/me/model/tree/{self.commit}"):  # from version 2
            return self.answer([{"type": "file", "path": n, "size": len(x), "oid": n} for n, x in self.files.items()])
        name = unquote(self.path.partition(f"/me/model/resolve/{self.commit}/")[2])
        if name not in self.files:
            return self.answer()
        body = self.files[name]
        self.answer(body=body, ETag=f'"{hashlib.sha1(body).hexdigest()}"', X_Repo_Commit=self.commit)

    do_HEAD = do_GET

    def do_POST(self):
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/preupload/main"):
            how = {"uploadMode": "regular", "shouldIgnore": False}
            return self.answer({"files": [{"path": one["path"], **how} for one in json.loads(sent)["files"]]})
        for line in sent.splitlines() if "/commit/" in self.path else ():
            if (one := json.loads(line))["key"] == "file":
                self.files[one["value"]["path"]] = base64.b64decode(one["value"]["content"])
        url = f"http://{self.headers['Host']}/me/model"
        self.answer({"url": url, "commitUrl": f"{url}/commit/{self.commit}", "commitOid": self.commit})

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub that huggingface_hub asks, and where it keeps copies."""
    Hub.files.clear()
    server = ThreadingHTTPServer(("localhost", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://localhost:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(hf_api.api, "endpoint", address)
    files = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for module in (constants, file_download):  # the latter has a copy before version 1
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", files, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("hub")
def test_a_model_goes_to_a_hub_and_comes_back(folder, tmp_path, error_of, output_of):
    """By huggingface_hub itself."""
    out = shutil.copytree(shared(folder, "translation"), tmp_path / "model")
    (out / "notes.bin").write_bytes(b"not of the model")
    assert "/me/model" in output_of("push", out, "--to", "me/model")
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".bin"]
    assert Hub.files == {str(path.relative_to(out)): path.read_bytes() for path in files}
    lines = (folder / "raw/test.en").read_text().splitlines()
    there = fairseq_diverse.load("me/model")
    assert there.folder.is_relative_to(tmp_path / "hub")
    assert there.translate(lines, cpu=True) == fairseq_diverse.load(out).translate(lines, cpu=True)
    said = "me/other: no such folder here, and not got from the Hugging Face hub"
    assert said in error_of("translate", "--model", "me/other", "--input", os.devnull)


def test_without_the_libraries_one_line_says_what_to_install(folder, tmp_path, monkeypatch, error_of):
    out, path = shared(folder, "translation"), checkpoint(folder, "translation")
    said = r"^fairseq is not installed; run: pip install"
    with monkeypatch.context() as patch, pytest.raises(ImportError, match=said):
        patch.setattr(fairseq_diverse, "find_spec", lambda name: None)
        fairseq_diverse.load(out)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for words in (["translate", "--model", "me/model"], ["push", str(out), "--to", "me/model"]):
        assert re.search(r"huggingface_hub is not installed; run: pip install .*share", error_of(*words))
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for words in (["translate", "--model", out], ["export", "--to", "safetensors", "--out", tmp_path / "x", path]):
        assert re.search(r"safetensors is not installed; run: pip install .*share", error_of(*words))


def test_the_card_of_a_run_has_scores_of_all_seeds(folder, tmp_path):
    """As the hub reads it; the figures are those of the summaries."""
    table = {"data": str(folder / "pairs"), "size": "tiny", "flags": {"max-update": 2}}
    table |= {"rows": {"evolving": {"evolving-on": "encoder"}}}
    (tmp_path / "table.yaml").write_text(json.dumps(table | {"generate": {"max-len-b": 9}, "metrics": "rouge-l"}))
    cli("run", tmp_path / "table.yaml", "--seeds", "2", env=runs_in(tmp_path / "runs"))
    (second,) = (tmp_path / "runs").glob("*/seed2")
    first = shutil.copytree(second, second.with_name("seed1"))
    summary = json.loads((first / "summary.json").read_text()) | {"seed": 1}
    summary["metrics"]["chrf"] += 3
    (first / "summary.json").write_text(json.dumps(summary))
    cli("export", "--to", "safetensors", "--out", tmp_path / "mine", second)
    card = ModelCard.load(tmp_path / "mine/README.md")
    assert card.data.language == ["en", "de"] and card.data.library_name == "fairseq-diverse"
    assert card.data.pipeline_tag == "translation" and card.data.tags == ["fairseq", "attention", "evolving"]
    figures = {one.metric_type: one.metric_value for one in card.data.eval_results}
    summaries = [json.loads((one / "summary.json").read_text()) for one in (first, second)]
    metrics = [one["metrics"] for one in summaries]
    for name in ("bleu", "chrf", "ter", "rouge-l"):
        assert figures[name] == round(metrics[1][name], 2)
        assert f"`{metrics[1]['signatures'][name]}`" in card.text
    mean = (metrics[0]["chrf"] + metrics[1]["chrf"]) / 2
    deviation = abs(metrics[0]["chrf"] - metrics[1]["chrf"]) / 2**0.5
    assert re.search(rf"\| chrF \| {metrics[1]['chrf']:.2f} \| {mean:.2f} ± {deviation:.2f} \|", card.text)
    assert "seeds 1, 2, ± deviation" in card.text and "train 60, valid 8, test 8 lines" in card.text
    words = ("--max-len-b 9 --input raw.txt", "fairseq-train", "Wang et al. (2021)")
    assert all(text in card.text for text in words)
