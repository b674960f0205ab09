"""Archives: the configuration's section, download, extraction."""

import gzip
import hashlib
import http.server
import json
import threading
import zipfile
from pathlib import Path

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.data import plain
from fairseq_diverse.data.plain import PLAIN_DATA, PlainData, download_plain
from fairseq_diverse.experiments.runs.find import find_data
from fairseq_diverse.preparation import DataConfig, extraction
from fairseq_diverse.preparation.download import fetch
from fairseq_diverse.preparation.extraction import extract, is_extracted, wrong_lines
from fairseq_diverse.preparation.prepare import wrong_pairs
from fairseq_diverse.support.paths import config_names, config_path
from fairseq_diverse.support.processes import locked
from fairseq_diverse.toy.probing import write_probing
from tests.archives import tarred, zipped
from tests.refusals import refusal, refused

FROM_ARCHIVES = [name for name in config_names("data") if DataConfig.load(config_path("data", name)).sources]
SPLITS = {
    "train": [{"archive": "a.tgz", "member": "a/train.{language}"}],
    "valid": [{"archive": "b.zip", "member": "b/valid-{role}.{language}.sgm", "lines": 2}],
    "test": [{"archive": "b.zip", "member": "b/test.{language}.gz"}],
}
SOURCES = {"archives": {"a.tgz": "http://localhost:9/a.tgz", "b.zip": "http://localhost:9/b.zip"}, "files": SPLITS}
SGM = '<refset>\n<doc>\n<seg id="1"> {} </seg>\n<p>\n<seg id="2">two</seg>\n</p></doc></refset>\n'


def data_config(**sources) -> DataConfig:
    return DataConfig.from_mapping("x", {"source": "en", "target": "de", "sources": SOURCES | sources})


def tar(path: Path, members: dict[str, str | bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(tarred({name: text.encode() if isinstance(text, str) else text for name, text in members.items()}))


@pytest.fixture
def archives(tmp_path) -> Path:
    folder = tmp_path / "archives"
    tar(folder / "a.tgz", {"a/README": "?", "a/train.de": "eins\nzwei\n", "a/train.en": "one\ntwo\n"})
    members = {
        "b/valid-src.en.sgm": SGM.format("R&amp;D &lt; &quot;x&quot; &apos; AT&T").encode(),
        "b/valid-ref.de.sgm": SGM.format("F&amp;E").encode(),
        "b/test.en.gz": gzip.compress(b"three\r\nfour\xe2\x80\xa8five"),
        "b/test.de.gz": gzip.compress(b"drei\nvier"),
    }
    (folder / "b.zip").write_bytes(zipped(members, zipfile.ZIP_STORED))
    return folder


# --- configuration ---


@pytest.mark.parametrize("name", FROM_ARCHIVES)
def test_every_archive_that_a_configuration_names_is_used(name):
    sources = DataConfig.load(config_path("data", name)).sources
    assert {part.archive for parts in sources.files.values() for part in parts} == {*sources.archives, *sources.by_hand}


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"archive": {}}, ("archive", "archives")),
        ({"archives": ["a.tgz"]}, ("archives", "a.tgz")),
        ({"files": {k: v for k, v in SPLITS.items() if k != "valid"}}, ("valid", "missing")),
        ({"files": SPLITS | {"train": [{"archive": "c.tgz", "member": "x"}]}}, ("train", "c.tgz", "a.tgz, b.zip")),
        ({"files": SPLITS | {"train": [{"archive": "a.tgz", "member": {"source": "x"}}]}}, ("member", "target")),
        ({"files": SPLITS | {"train": [{"archive": "a.tgz"}]}}, ("train", "member")),
        ({"files": SPLITS | {"train": [{"archive": "a.tgz", "member": "x", "lines": "2"}]}}, ("lines", "'2'")),
        ({"files": SPLITS | {"train": [{"archive": "a.tgz", "members": "x"}]}}, ("members", "member, lines")),
        ({"files": SPLITS | {"train": "a.tgz"}}, ("files", "list")),
        ({"archives": {"../a.tgz": "x"}}, ("archives", "../a.tgz", "without folders")),
        ({"archives": {"a.tgz": 5}}, ("a.tgz", "address", "5")),
        ({"archives": {"a.tgz": {"url": "x"}}}, ("a.tgz", "url", "address, bytes, sha256")),
        ({"archives": {"a.tgz": {"bytes": 5}}}, ("a.tgz", "address", "5")),
        ({"archives": {"a.tgz": {"address": "x", "bytes": "5"}}}, ("a.tgz", "bytes", "'5'")),
        ({"archives": {"a.tgz": {"address": "x", "bytes": 0}}}, ("a.tgz", "bytes", "not 0")),
        ({"by-hand": {"a.tgz": {"address": "x", "sha256": "A" * 64}}}, ("by-hand: a.tgz", "sha256", "64 digits")),
        ({"files": SPLITS | {"../../x": SPLITS["train"]}}, ("files", "../../x", "outside the folder")),
        ({"hold-out": 1}, ("hold-out", "1")),
        ({"hold-out": 5}, ("validation", "held out")),
        ({"counts": {"dev": 1}}, ("counts", "dev", "valid")),
        ({"counts": {"train": "1"}}, ("counts", "train")),
    ],
)
def test_a_wrong_section_names_the_key_and_the_value(sources, words):
    caught = refusal(data_config, **sources)
    assert all(word in caught for word in words)


# --- download ---


class Server(http.server.ThreadingHTTPServer):
    """Serves ``content`` with ranges; closes the connection after ``limit`` bytes. ``asked``: the requested ranges."""

    def __init__(self, content: bytes, ranges: bool = True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges = content, ranges
        self.limit: int | None = None
        self.asked: list[str | None] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/a.tgz"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        content = self.server.content[start:]
        if not content:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.limit])

    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(content: bytes, **options) -> Server:
        servers.append(Server(content, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


CONTENT = bytes(range(256)) * 40


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_resumes_or_restarts_without_ranges(ranges, tmp_path, serve):
    server = serve(CONTENT, ranges=ranges)
    sources = data_config(archives={"a.tgz": server.address, "b.zip": server.address}).sources
    server.limit = 4000
    missing = r"2 archives are missing \(a.tgz: the connection ended after 4,000 of 10,240 bytes"
    with pytest.raises(ValueError, match=missing):
        fetch(sources.archives, sources.by_hand, tmp_path / "new")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.tgz.part"]
    server.limit = None
    fetch(sources.archives, sources.by_hand, tmp_path / "new")
    assert server.asked == [None, "bytes=4000-", None]
    assert {p.name: p.read_bytes() for p in (tmp_path / "new").iterdir()} == {"a.tgz": CONTENT, "b.zip": CONTENT}
    fetch(sources.archives, sources.by_hand, tmp_path / "new")
    assert len(server.asked) == 3  # nothing is downloaded twice


def test_a_part_that_is_too_long_is_discarded(tmp_path, serve):
    server = serve(CONTENT)
    (tmp_path / "b.zip").touch()
    (tmp_path / "a.tgz.part").write_bytes(b"?" * len(CONTENT))
    fetch({"a.tgz": server.address, "b.zip": ""}, {}, tmp_path)
    assert (tmp_path / "a.tgz").read_bytes() == CONTENT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tgz", "b.zip"]


@pytest.mark.parametrize("download", [True, False])
def test_offline_every_missing_archive_is_listed_with_its_address_and_the_folder(download, archives):
    (archives / "a.tgz").unlink()
    sources = data_config(**{"by-hand": {"c.zip": "https://example.org/ask"}}).sources
    with pytest.raises(ValueError) as caught:
        fetch(sources.archives, sources.by_hand, archives, download)
    assert str(caught.value).splitlines() == [
        f"2 archives are missing; put into {archives}:",
        "  a.tgz  http://localhost:9/a.tgz",
        "  c.zip  by hand: https://example.org/ask",
    ]
    (archives / "c.zip").touch()
    with pytest.raises(ValueError) as caught:
        fetch(sources.archives, sources.by_hand, archives, download)
    first, listed = str(caught.value).splitlines()
    assert ("Connection refused" in first) == download
    assert listed == "  a.tgz  http://localhost:9/a.tgz"


# --- extraction ---


def text(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")


def test_members_become_lines(archives, tmp_path):
    raw = tmp_path / "raw"
    extract(data_config(), archives, raw)
    assert text(raw / "train.en") == ["one", "two", ""]
    assert text(raw / "train.de") == ["eins", "zwei", ""]
    assert text(raw / "valid.en") == ['R&D < "x" \' AT&T', "two", ""]
    assert text(raw / "valid.de") == ["F&E", "two", ""]
    assert text(raw / "test.en") == ["three", "four\u2028five", ""]
    assert text(raw / "test.de") == ["drei", "vier", ""]
    names = [f"{split}.{language}" for split in SPLITS for language in ("en", "de")]
    assert {path.name for path in raw.iterdir()} == {"sources.json", *names}


def test_only_sentences_of_talks_are_extracted(tmp_path):
    tags = (
        "<doc docid='1'>\n<url>http://x</url>\n<speaker>A B</speaker>\n<talkid>1</talkid>\n"
        "<title>The {0}</title>\n<description>About the {0}.</description>\n"
        "<keywords>talks, {0}</keywords>\n Is 3 < 4 &amp; the {0}? \n<reviewer href='x'>C</reviewer>\n</doc>\n"
    )
    xml = '<mteval>\n<doc>\n<title>No {0}</title>\n<seg id="1"> It\u2019s a {0}. </seg>\n</doc></mteval>\n'
    inner = {}
    for language, word in (("en", "sea"), ("de", "Meer")):
        inner[f"./en-de/train.tags.en-de.{language}"] = tags.format(word).encode()
        inner[f"./en-de/dev.{language}.xml"] = xml.format(word).encode()
    tar(tmp_path / "a.tgz", {"2016/en-de.tgz": tarred(inner), "2016/en-fr.tgz": b"not wanted"})
    inside = "2016/en-de.tgz/en-de"
    part = {"archive": "a.tgz", "member": f"{inside}/dev.{{language}}.xml"}
    files = {"train": [{"archive": "a.tgz", "member": f"{inside}/train.tags.en-de.{{language}}"}]}
    config = data_config(archives={"a.tgz": ""}, files=files | {"valid": [part], "test": [part, part]})
    extract(config, tmp_path, tmp_path / "raw")
    assert text(tmp_path / "raw/train.de") == ["The Meer", "About the Meer.", "Is 3 < 4 &amp; the Meer?", ""]
    assert text(tmp_path / "raw/valid.en") == ["It's a sea.", ""]
    assert text(tmp_path / "raw/test.en") == ["It's a sea.", "It's a sea.", ""]


def test_members_that_match_a_pattern_are_joined_in_order(archives, tmp_path):
    tar(archives / "a.tgz", {f"a/{b}_{x}.txt": f"{b} {x}\n" for x in ("en", "cn", "fr") for b in ("B2", "B10", "B1")})
    part = {"archive": "a.tgz", "member": {"source": "a/*_c[hn].txt", "target": "a/*_en.txt"}}
    extract(data_config(files=SPLITS | {"train": [part]}), archives, tmp_path / "raw")
    assert text(tmp_path / "raw/train.en") == ["B10 cn", "B1 cn", "B2 cn", ""]
    assert text(tmp_path / "raw/train.de") == ["B10 en", "B1 en", "B2 en", ""]


def flipped(path: Path, text: bytes) -> None:
    """Change one letter of the stored data, like a failing disk."""
    content = path.read_bytes()
    assert content.count(text) == 1
    path.write_bytes(content.replace(text, text[:-1] + bytes([text[-1] ^ 1])))


def stored(members: dict[str, bytes]) -> bytes:
    """A .tar.gz without compression, so that its text can be found."""
    return gzip.compress(tarred(members, "w"), compresslevel=0)


def test_changed_text_in_an_archive_is_found(archives, tmp_path):
    members = {"a/train.en": b"one\ntwo\n", "a/train.de": b"eins\nzwei\n", "z/not-wanted": b"?" * 50_000}
    raw = tmp_path / "raw"
    (archives / "a.tgz").write_bytes(stored(members))
    extract(data_config(), archives, raw)
    flipped(archives / "a.tgz", b"zwei")
    refused(r"a\.tgz: cannot be read \(CRC check failed", extract, data_config(), archives, raw)
    inside = "in/a.tar.gz/a/train.{language}"
    part = {"archive": "a.tgz", "member": inside}
    (archives / "a.tgz").write_bytes(stored({"in/a.tar.gz": stored(members)}))
    extract(data_config(files=SPLITS | {"train": [part]}), archives, raw)
    assert text(raw / "train.de") == ["eins", "zwei", ""]
    flipped(archives / "a.tgz", b"zwei")
    with pytest.raises(ValueError, match=r"a\.tgz: cannot be read \(CRC check failed"):
        extract(data_config(files=SPLITS | {"train": [part]}), archives, raw)


@pytest.mark.parametrize("where", ["tgz", "gz in a zip", "zip", "zip in a tgz", "bzip2"])
def test_an_archive_bomb_is_refused_before_the_disk_is_full(where, archives, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "ALWAYS", 1 << 20)
    bomb = b"bomb\n" * 1_000_000
    members = {"a/train.en": bomb, "a/train.de": bomb, "a/packed.gz": gzip.compress(bomb)}
    member, name, content = {
        "tgz": ("a/train.{language}", "a.tgz", tarred({"not/wanted": bomb})),
        "bzip2": ("a/train.{language}", "a.tgz", tarred({"a/train.en": bomb}, "w:bz2")),
        "zip": ("a/train.{language}", "a.zip", zipped(members)),
        "gz in a zip": ("a/packed.gz", "a.zip", zipped(members)),
        "zip in a tgz": ("a.zip/a/train.{language}", "a.tgz", tarred({"a.zip": zipped(members)})),
    }[where]
    (archives / name).write_bytes(content)
    files = SPLITS | {"train": [{"archive": name, "member": member}]}
    config = data_config(archives={name: "", "b.zip": ""}, files=files)
    caught = refusal(extract, config, archives, tmp_path / "raw")
    size = (archives / name).stat().st_size
    assert caught == (
        f"{archives / name}: contains more than {max(1 << 20, 100 * size):,} bytes, the limit for its {size:,} bytes; "
        "if right, unpack it yourself and use --raw"
    )
    assert not list((tmp_path / "raw").rglob("*.tmp"))


@pytest.mark.parametrize(("place", "value", "words"), [(6, 1, "encrypted"), (8, 97, "compression")])
def test_a_zip_that_cannot_be_read_is_one_line(place, value, words, archives, tmp_path):
    content = bytearray((archives / "b.zip").read_bytes())
    for mark, shift in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        start = -1
        while (start := content.find(mark, start + 1)) >= 0:
            content[start + place + shift] = value
    (archives / "b.zip").write_bytes(content)
    with pytest.raises(ValueError, match=rf"b\.zip: cannot be read \(.*{words}.*\); .*unpack it yourself"):
        extract(data_config(), archives, tmp_path / "raw")


@pytest.mark.parametrize("name", ["..", ".", "/", "../../x", "/tmp/x", "a/\udcff"])
def test_a_member_cannot_leave_the_folder(name, archives, tmp_path):
    tar(archives / "a.tgz", {name: "one\n"})
    part = {"archive": "a.tgz", "member": "*"}
    before = {path for path in tmp_path.rglob("*") if path != archives / "a.tgz"}
    extract(data_config(files=SPLITS | {"train": [part]}), archives, tmp_path / "raw")
    assert text(tmp_path / "raw/train.en") == ["one", ""]
    assert {path for path in tmp_path.rglob("*") if tmp_path / "raw" not in (path, *path.parents)} >= before
    assert {path.name for path in tmp_path.iterdir()} == {"archives", "raw"}


def test_size_and_checksum_of_an_archive_are_checked_before_it_is_read(archives, tmp_path):
    config, raw, path = data_config(), tmp_path / "raw", archives / "a.tgz"
    extract(config, archives, raw)
    known = {"address": "x", "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    checked = data_config(archives={"a.tgz": known, "b.zip": ""})
    assert not is_extracted(checked, archives, raw)  # the check is new
    extract(checked, archives, raw)
    assert is_extracted(checked, archives, raw)
    size = known["bytes"]
    for other, words in (
        ({"bytes": size + 1}, f"a.tgz: {size:,} bytes, {size + 1:,} are expected; delete it and download it again"),
        ({"sha256": "0" * 64}, f"a.tgz: its SHA-256 is {known['sha256']}, {'0' * 64} is expected; delete it"),
    ):
        caught = refusal(extract, data_config(archives={"a.tgz": known | other, "b.zip": ""}), archives, raw)
        assert words in caught


def damage(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda a: damage(a / "a.tgz", 120), ("a.tgz: cannot be read", "download it again")),
        (lambda a: (a / "a.tgz").write_text("<html>404</html>"), ("a.tgz: cannot be read",)),
        (lambda a: damage(a / "b.zip", 300), ("b.zip: cannot be read",)),
        (lambda a: tar(a / "a.tgz", {"a/train.en": "one\n"}), ("a.tgz: has no member a/train.de",)),
        (lambda a: tar(a / "a.tgz", {"a/train.en": "1\n", "a/train.de": "1\n2\n"}), ("en has 1 lines and a/train.de",)),
        (lambda a: tar(a / "a.tgz", {"a/train.en": "1\n2\n", "a/train.de": b"1\n\xfc\n"}), ("n.de, line 2: not UTF",)),
    ],
)
def test_a_wrong_archive_is_named(spoil, words, archives, tmp_path):
    config, raw = data_config(), tmp_path / "raw"
    spoil(archives)
    caught = refusal(extract, config, archives, raw)
    assert all(word in caught for word in (str(archives), *words))
    assert not is_extracted(config, archives, raw)
    assert [p for p in raw.iterdir() if p.name != "parts"] == []


def test_a_segment_without_end_is_named_with_its_line(archives, tmp_path):
    tar(archives / "a.tgz", {"a/train.en.sgm": SGM, "a/train.de.sgm": SGM.replace("two</seg>", "two")})
    part = {"archive": "a.tgz", "member": "a/train.{language}.sgm"}
    with pytest.raises(ValueError, match=r"a\.tgz: a/train\.de\.sgm, line 5: a segment has no end"):
        extract(data_config(files=SPLITS | {"train": [part]}), archives, tmp_path / "raw")


def test_wrong_counts_are_reported_with_both_numbers(archives, tmp_path):
    for lines in (1920209, 1):
        config = data_config(files=SPLITS | {"train": [SPLITS["train"][0] | {"lines": lines}]})
        extract(config, archives, tmp_path / "raw")
        assert wrong_lines(config, tmp_path / "raw") == [f"a.tgz: a/train.en has 2 lines, {lines:,} are expected"]
    record = {"format": "fairseq-diverse preprocessing", "schema": 1, "splits": {"train": {"kept": 1600}}}
    (tmp_path / "preprocess.json").write_text(json.dumps(record))
    assert wrong_pairs(data_config(counts={"train": 1600}), tmp_path) == []
    said = ["train: 1,600 pairs kept, 160,239 are expected"]
    assert wrong_pairs(data_config(counts={"train": 160239}), tmp_path) == said


@pytest.mark.parametrize("step", ["_lines", "_append"])
def test_an_interrupted_extraction_leaves_no_partial_file_and_resumes(step, archives, tmp_path, monkeypatch):
    config, raw = data_config(), tmp_path / "raw"
    real, calls = getattr(extraction, step), []

    def stop(*args):
        calls.append(args)
        if len(calls) == 4:  # in the second archive; in the second file
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(extraction, step, stop)
    with pytest.raises(KeyboardInterrupt):
        extract(config, archives, raw)
    monkeypatch.undo()
    assert not is_extracted(config, archives, raw)
    assert not list(raw.rglob("*.tmp"))
    assert all(len(text(path)) == 3 for path in raw.glob("*.*"))
    opened = []
    monkeypatch.setattr(extraction.tarfile, "open", lambda *args, **kwargs: opened.append(kwargs))
    extract(config, archives, raw)
    assert not opened  # a.tgz was complete
    assert is_extracted(config, archives, raw)
    assert text(raw / "train.de") == ["eins", "zwei", ""]


def test_an_archive_that_was_replaced_after_an_interruption_is_read_again(archives, tmp_path, monkeypatch):
    config, raw = data_config(), tmp_path / "raw"
    monkeypatch.setattr(extraction, "_append", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        extract(config, archives, raw)
    monkeypatch.undo()
    tar(archives / "a.tgz", {"a/train.de": "drei\n", "a/train.en": "three\n"})
    extract(config, archives, raw)
    assert text(raw / "train.de") == ["drei", ""]


def test_extracted_files_are_kept_until_an_archive_or_the_configuration_changes(archives, tmp_path):
    config, raw = data_config(), tmp_path / "raw"
    assert not is_extracted(config, archives, raw)
    extract(config, archives, raw)
    assert is_extracted(config, archives, raw)
    (archives / "b.zip").unlink()
    assert is_extracted(config, archives, raw)
    other = data_config(files=SPLITS | {"train": SPLITS["train"] * 2})
    assert not is_extracted(other, archives, raw)
    tar(archives / "a.tgz", {"a/train.de": "drei\n", "a/train.en": "three\n"})
    assert not is_extracted(config, archives, raw)
    (raw / "train.de").write_text("")
    (archives / "a.tgz").unlink()
    assert not is_extracted(config, archives, raw)


# --- files that are used as they are ---


def test_files_are_downloaded(tmp_path, serve):
    server = serve(CONTENT)
    address = server.address.rpartition("/")[0]
    download_plain(PlainData(address, ["a", "b"], "of x", Path.read_text), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": CONTENT, "b": CONTENT}


def test_files_of_ones_own_are_checked_and_copied_all_or_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    raw, made = tmp_path / "raw", tmp_path / "data/probing"
    write_probing(raw, 60)

    def asked(*more):
        assert main(["prepare", "probing", "--raw", str(raw), *more]) in (0, 2)
        said = capsys.readouterr()
        return (said.out + said.err).removeprefix("fairseq-diverse prepare: ")

    good = (raw / "subj_number.txt").read_text()
    for content, words in ((good + "tr\tNN\n", "/subj_number.txt, line "), (None, ": lacks subj_number.txt")):
        (raw / "subj_number.txt").write_text(content) if content else (raw / "subj_number.txt").unlink()
        assert asked().startswith(f"{raw}{words}") and not list((tmp_path / "data").glob("*"))
    (raw / "subj_number.txt").write_text(good)
    with locked(tmp_path / "data/.probing.part"):
        assert "is working on" in asked() and not made.exists()
    assert asked() == f"prepared {made}\n" and asked() == f"already prepared: {made}\n"
    before = find_data("probing").hash
    assert sorted(path.name for path in made.iterdir()) == sorted(PLAIN_DATA["probing"].files)
    (raw / "subj_number.txt").write_text(good.replace("tr\t", "tr\t", 1) + "te\tNN\tdogs .\n")
    assert "holds other files of these names; choose another --out or add --overwrite" in asked()
    assert asked("--overwrite") == f"prepared {made}\n" and find_data("probing").hash != before
    (made / "thesis.tex").write_text("mine")
    (raw / "subj_number.txt").write_text(good)
    assert "exists and is something else; choose another --out" in asked("--overwrite")
    assert (made / "thesis.tex").read_text() == "mine"


def test_offline_the_files_are_listed_with_their_addresses(tmp_path, monkeypatch, capsys):
    here = PlainData("http://localhost:9/x", ["a.txt", "b.txt"], "of x", Path.read_text)
    monkeypatch.setitem(plain.PLAIN_DATA, "probing", here)
    assert main(["prepare", "probing", "--archives", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    first, *files = capsys.readouterr().err.splitlines()
    assert "2 files are missing (a.txt: [Errno 111]" in first and first.endswith(f"); put into {tmp_path}/probing:")
    assert [line.split() for line in files] == [[name, f"http://localhost:9/x/{name}"] for name in ("a.txt", "b.txt")]
    assert not (tmp_path / "out").exists()
