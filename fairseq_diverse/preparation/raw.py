"""Raw files: text with one sentence a line, of each language or of both as TSV and TMX, also compressed; test sets of
sacreBLEU. Other files are refused in one line that says what is wanted."""

import difflib
import glob
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fairseq_diverse.preparation.progress import bar
from fairseq_diverse.support.files import decode_lines, iterate_lines, sha256_of
from fairseq_diverse.support.languages import base_language

WANTED = "plain text, a file for each language with one sentence a line, or a .tsv or .tmx of both, is wanted"
STARTS = {  # of a file: what it is, what to do
    rb"\x1f\x8b": "compressed; unpack it with gunzip, or call it .gz",
    rb"BZh\d": "compressed; unpack it with bunzip2",
    rb"\xfd7zXZ": "compressed; unpack it with unxz",
    rb"PK\x03\x04": "an archive; unpack it with unzip",
    rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|tmx|!DOCTYPE)": "XML; if it is TMX, call it .tmx",
    rb"(?s:[^\0]\0){4}|(?s:\0[^\0]){4}": "UTF-16; convert it to UTF-8, for example with iconv",
    rb"version https://git-lfs": "the pointer of a file that Git LFS keeps; get the file with git lfs pull",
}
OTHERS = (".gz", ".bz2", ".xz", ".zip", ".tgz", ".tsv", ".csv", ".tmx", ".xml", ".json", ".jsonl")
JOINT = (".tsv", ".tmx")  # both languages in one file
SACREBLEU = "sacrebleu:"  # before the name of a test set
LONGEST = 1 << 24  # bytes of a line of a compressed file
CODES = ("bpt", "ept", "ph", "it", "ut")  # elements of TMX for formatting of another program, which is no text
LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def joint(prefix: str | Path) -> str:
    """``.tsv`` or ``.tmx`` where a prefix names a file of both languages, else an empty text."""
    suffix = Path(str(prefix).removesuffix(".gz")).suffix
    return suffix if suffix in JOINT else ""


def name_of_test(prefix: str) -> str:
    """The name of a test set: its prefix without folders and ending, or as sacreBLEU has it."""
    if prefix.startswith(SACREBLEU):
        return prefix.removeprefix(SACREBLEU).replace("/", "_")
    name = Path(prefix).name
    return name.removesuffix(".gz").removesuffix(joint(name)) if joint(name) else name


def sides(raw: Path, prefix: str, endings: Sequence[str]) -> list[tuple[str, Path]]:
    """For each language the name of a split's file, for records, and its path: twice the same where both are in one.
    ``endings`` are the languages as the user gives them. Raises ``ValueError``: a test set of sacreBLEU is not known or
    cannot be downloaded, or there is but one language."""
    if len(endings) < 2 and (joint(prefix) or prefix.startswith(SACREBLEU)):
        raise ValueError(f"{prefix}: has two languages; text of one language is a file for it")
    if prefix.startswith(SACREBLEU):
        return [(f"{prefix}.{end}", path) for end, path in zip(endings, _test_set(prefix, endings), strict=True)]
    if joint(prefix):
        return [(prefix, raw / prefix)] * 2
    compressed = ((name, raw / f"{name}.gz") for name in [f"{prefix}.{ending}" for ending in endings])
    return [(name, raw / name if (raw / name).exists() or not gz.is_file() else gz) for name, gz in compressed]


def _test_set(prefix: str, languages: Sequence[str]) -> tuple[Path, Path]:
    """Source and first reference of a test set that sacreBLEU has or downloads."""
    from sacrebleu.dataset import DATASETS

    name, pair = prefix.removeprefix(SACREBLEU), "-".join(map(base_language, languages))
    if (known := DATASETS.get(name)) is None:
        near = "".join(f"nearest: {close}; " for close in difflib.get_close_matches(name, DATASETS, n=1))
        raise ValueError(f"{prefix}: no test set of sacreBLEU; {near}`sacrebleu --list` names them")
    if pair not in known.langpairs:
        raise ValueError(f"{prefix}: sacreBLEU has no {pair} of it; known: {', '.join(known.langpairs)}")
    try:
        return Path(known.get_source_file(pair)), Path(known.get_reference_files(pair)[0])
    except (Exception, SystemExit) as error:  # of the network, of archives, or after a message of its own
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        todo = f"on a machine with a network, `sacrebleu -t {name} -l {pair} --echo src` fills {known._outdir}: copy it"
        raise ValueError(f"{prefix}: sacreBLEU could not download it ({why}); {todo}") from None


def file_hash(path: Path) -> str:
    """SHA-256 of a file. Raises ``ValueError``: it cannot be read; names a file of another kind that is there in its
    place."""
    try:
        return sha256_of(path)
    except OSError as error:
        beside = sorted(path.parent.glob(f"{glob.escape(path.stem)}.*"))
        present = [file for file in (path.with_suffix(""), *beside) if file.suffix in OTHERS and file.is_file()]
        hint = f"{present[0]} is there, but {WANTED}" if present else "are the raw files there?"
        raise ValueError(f"{path}: cannot be read ({error.strerror}); {hint}") from None


def sentences(paths: Sequence[Path], languages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The sentences of one language, or pairs of two, of the files that `sides` found. Raises ``ValueError``: a file is
    damaged, not UTF-8, or of another form; names the file and the line."""
    if not (kind := joint(paths[0])):
        return zip(*map(_lines, paths), strict=True)
    return _tsv(paths[0]) if kind == ".tsv" else _tmx(paths[0], languages)


def count_sentences(paths: Sequence[Path], languages: Sequence[str]) -> int:
    """The number of `sentences`, or of pairs. Raises ``ValueError``: as `sentences`; the sides differ, or a file is not
    ``WANTED``."""
    if joint(paths[0]):
        return sum(1 for _ in bar(sentences(paths, languages), f"read {paths[0].name}"))
    lines = [_count(path) for path in paths]
    if lines[0] != lines[-1]:
        counts = f"{paths[0]} has {lines[0]:,} lines and {paths[1]} {lines[1]:,}"
        raise ValueError(f"{counts}; they are not two sides of one text")
    return lines[0]


def place(path: Path, number: int) -> str:
    """A sentence of a file, for messages; of TMX its number among the pairs."""
    return f"{path}, {'pair' if joint(path) == '.tmx' else 'line'} {number}"


def _refuse_others(path: Path) -> None:
    with _opened(path) as f:
        start = f.read(200)
    for pattern, text in STARTS.items():
        if re.match(pattern, start, re.IGNORECASE):
            raise ValueError(f"{path}: {text}; {WANTED}")


def _count(path: Path) -> int:
    _refuse_others(path)
    lines = tabs = returns = 0
    for line in _lines(path):
        lines += 1
        tabs += "\t" in line.strip()
        returns += line.rstrip("\r").count("\r")
    if returns >= lines > 0:
        raise ValueError(f"{path}: its lines end with a carriage return alone; write newlines with tr '\\r' '\\n'")
    if tabs == lines > 0:
        raise ValueError(f"{path}: every line has columns between tabs; {WANTED}: take one with cut -f")
    return lines


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file, or what is in one that gzip wrote."""
    compressed = path.suffix == ".gz"
    try:
        with gzip.open(path) if compressed else open(path, "rb") as f:
            yield f
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged or cut off, or not of gzip ({error}); get it again") from None


def _lines(path: Path) -> Iterator[str]:
    if path.suffix != ".gz":
        yield from iterate_lines(path)
        return
    with _opened(path) as f:
        yield from decode_lines(_bounded(f, path), str(path))


def _bounded(lines: IO[bytes], path: Path) -> Iterator[bytes]:
    """Lines of a compressed file, none of which may fill the memory."""
    for number, line in enumerate(iter(lambda: lines.readline(LONGEST + 1), b""), start=1):
        if len(line) > LONGEST:
            raise ValueError(f"{path}, line {number}: longer than {LONGEST:,} bytes: not text with a sentence a line")
        yield line


def _tsv(path: Path) -> Iterator[tuple[str, str]]:
    _refuse_others(path)
    for number, line in enumerate(_lines(path), start=1):
        source, *others = line.split("\t")
        if len(others) != 1:
            columns = f"{len(others) + 1} column{'s' * bool(others)}, where source, tab, target are wanted"
            todo = "; cut -f 1,2 takes the first two" * (len(others) > 1)
            raise ValueError(f"{path}, line {number}: {columns}{todo}")
        yield source, others[0]


def _tmx(path: Path, languages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The units that have both languages; entities are never expanded, and nothing is read from elsewhere."""
    from lxml import etree

    codes, pairs = dict[str, None](), 0
    with _opened(path) as f:
        try:
            options: dict[str, Any] = {"resolve_entities": False, "no_network": True, "load_dtd": False}
            for _, unit in etree.iterparse(f, tag="{*}tu", remove_comments=True, remove_pis=True, **options):
                dtd = unit.getroottree().docinfo.internalDTD
                if dtd is not None and any(True for _ in dtd.iterentities()):
                    declared = "its DOCTYPE declares entities"
                    raise ValueError(f"{path}: {declared}, which are never expanded; write it without")
                texts: dict[str, str] = {}
                for version in unit.iterfind("{*}tuv"):
                    code = (version.get(LANG) or version.get("lang") or "").lower().replace("_", "-")
                    segment = version.find("{*}seg")
                    if not code or segment is None:
                        lacking = "no segment (seg)" if code else "no language (xml:lang)"
                        raise ValueError(f"{path}, line {version.sourceline}: a tuv with {lacking}")
                    texts.setdefault(code, " ".join(_text(segment, path).split("\n")).strip())
                codes |= dict.fromkeys(texts)
                source, target = (_matching_code(code, texts) for code in languages)
                if source and target and source != target:
                    pairs += 1
                    yield texts[source], texts[target]
                unit.clear()
                while unit.getprevious() is not None:
                    del unit.getparent()[0]
        except etree.XMLSyntaxError as error:
            raise ValueError(f"{path}, line {error.lineno or 1}: not TMX, or damaged ({error.msg})") from None
    if not pairs:
        both, present = " and ".join(languages), ", ".join(codes) or "none"
        raise ValueError(f"{path}: no unit (tu) has both {both}; languages: {present}")


def _matching_code(code: str, texts: dict[str, str]) -> str:
    """The code of a unit that is a language, or that of another region; empty if there is none."""
    code = code.lower().replace("_", "-")
    near = (candidate for candidate in texts if base_language(candidate) == base_language(code))
    return code if code in texts else next(near, "")


def _text(element: Any, path: Path) -> str:
    """The text of a segment, without the formatting codes in it."""
    parts = [element.text or ""]
    for part in element:
        if not isinstance(part.tag, str):
            where = f"{path}, line {part.sourceline}"
            raise ValueError(f"{where}: the entity {part.text}, which is never expanded; write it")
        parts += ["" if part.tag.rpartition("}")[2] in CODES else _text(part, path), part.tail or ""]
    return "".join(parts)
