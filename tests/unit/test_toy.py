"""The toy grammar follows German and English grammar, and its corpus the documented formats."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_diverse.cli import main as cli
from fairseq_diverse.cli.toy import word_by_word_score
from fairseq_diverse.toy import corpus, english, german, lexicon, probing
from fairseq_diverse.toy.abstract_syntax import (
    Clause,
    Common,
    Coordination,
    Gap,
    Name,
    Predicate,
    Prepositional,
    Pronoun,
    Relative,
)
from fairseq_diverse.toy.corpus import word_by_word, write_corpus
from fairseq_diverse.toy.lexicon import MODALS
from fairseq_diverse.toy.trees import Tree, dependencies

SIZES = {"train": 3000, "valid": 150, "test": 150}
HE, SHE, ME, YOU, WE = (Pronoun(word) for word in ("he", "she", "I", "you", "we"))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    out = tmp_path_factory.mktemp("toy")
    write_corpus(out, SIZES["train"], SIZES["valid"], SIZES["test"], seed=3)
    return out


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def sentences(path: Path) -> list[list[list[str]]]:
    """The rows of a CoNLL-U file, sentence by sentence."""
    blocks = path.read_text(encoding="utf-8").removesuffix("\n\n").split("\n\n")
    return [[line.split("\t") for line in block.split("\n") if not line.startswith("#")] for block in blocks]


# -- the grammar, by hand --------------------------------------------------------------------------------------------


def verb(infinitive: str, english: str = "") -> lexicon.Verb:
    """The first of the German verb, and of the English one."""
    return next(v for v in lexicon.VERBS if v.prefix + v.german[0] == infinitive and english in ("", v.english))


def the(word: str, determiner: str = "the", *adjectives: str, **more) -> Common:
    noun = next(n for n in lexicon.NOUNS if word in (n.singular, n.plural))
    chosen = [next(a for a in lexicon.ADJECTIVES if a.english == name and noun.kind in a.kinds) for name in adjectives]
    return Common(noun, determiner, noun.plural == word, adjectives=[(("", ""), a) for a in chosen], **more)


def translated(clause: Clause) -> tuple[str, str]:
    source = " ".join(leaf.word for leaf in english.clause(clause).capitalized().leaves())
    return source, german.spell([*german.main(clause), "."])


def after(subordinator: str, clause: Clause) -> str:
    return " ".join(german.subordinate(clause, subordinator)).replace(" ,", ",")


def relative(noun: Common, clause: Clause, of_object: bool = False) -> Common:
    noun.relative = Relative(clause, of_object, noun.noun.kind == "P")
    return noun


LOOK = verb("ansehen")
WATCH = verb("ansehen", "watch")
ONTO_TABLE = Prepositional("on", "auf", "acc", the("table"))
IN_GARDEN = Prepositional("in", "in", "dat", the("garden"))
YESTERDAY = next(time for time in lexicon.TIMES if time.german == "gestern")
QUIETLY = {"manner": ("quietly", "leise")}
KNIFE = Prepositional("with", "mithilfe", "gen", the("knife", "a", "sharp"))


SENTENCES = {
    # separable verb, verb second, auxiliaries
    "He looks at the dog = Er sieht den Hund an.": Clause(HE, LOOK, [the("dog")]),
    "He looked at the dog = Er sah den Hund an.": Clause(HE, LOOK, [the("dog")], "past"),
    "You have looked at her = Du hast sie angesehen.": Clause(YOU, LOOK, [SHE], "perfect"),
    "He can look at me = Er kann mich ansehen.": Clause(HE, LOOK, [ME], modal=MODALS[0]),
    "We had arrived = Wir waren angekommen.": Clause(WE, verb("ankommen"), tense="pluperfect"),
    "I am looking at the dog = Ich sehe gerade den Hund an.": Clause(ME, LOOK, [the("dog")], "progressive"),
    "I like to look at the dog = Ich sehe den Hund gern an.": Clause(ME, LOOK, [the("dog")], modal=MODALS[9]),
    # government: dative, accusative, preposition, swapped roles
    "He helps the woman = Er hilft der Frau.": Clause(HE, verb("helfen"), [the("woman")]),
    "He waits for the boy = Er wartet auf den Jungen.": Clause(HE, verb("warten"), [the("boy")]),
    "He misses the friends = Ihm fehlen die Freunde.": Clause(HE, verb("fehlen"), [the("friends")]),
    "I give the child a sweet cake = Ich gebe dem Kind einen süßen Kuchen.": Clause(
        ME, verb("geben"), [the("child"), the("cake", "a", "sweet")]
    ),
    "I give it to the child = Ich gebe ihn dem Kind.": Clause(
        ME, verb("geben"), [the("child"), Pronoun("it", "m", True)], receiver_last=True
    ),
    "You hurry = Du beeilst dich.": Clause(YOU, verb("beeilen")),
    "You watch the race = Du siehst dir das Rennen an.": Clause(YOU, WATCH, [the("race")]),
    "I watch it = Ich sehe es mir an.": Clause(ME, WATCH, [Pronoun("it", "n", True)]),
    "Yesterday , he missed us = Gestern fehlten wir ihm.": Clause(
        HE, verb("fehlen"), [WE], time=YESTERDAY, time_first=True, tense="past"
    ),
    # lexical choice
    "The dog eats the bread = Der Hund frisst das Brot.": Clause(the("dog"), verb("fressen"), [the("bread")]),
    "He puts the vase on the table = Er stellt die Vase auf den Tisch.": Clause(
        HE, verb("stellen"), [the("vase")], place=ONTO_TABLE
    ),
    "He goes to Vienna = Er geht nach Wien.": Clause(
        HE, verb("gehen"), place=Prepositional("to", "nach", "dat", Name(["Vienna"], ["Wien"]))
    ),
    # negation
    "He does not look at the dog = Er sieht den Hund nicht an.": Clause(HE, LOOK, [the("dog")], negated=True),
    "He does not look at a dog = Er sieht keinen Hund an.": Clause(HE, LOOK, [the("dog", "a")], negated=True),
    "He is not a good teacher = Er ist kein guter Lehrer.": Clause(
        HE, None, predicate=Predicate(noun=the("teacher", "a", "good")), negated=True
    ),
    "He must not sleep = Er darf nicht schlafen.": Clause(HE, verb("schlafen"), modal=MODALS[1], negated=True),
    # attachment decides the preposition's translation
    "He cuts the bread with a sharp knife = Er schneidet das Brot mithilfe eines scharfen Messers.": Clause(
        HE, verb("schneiden"), [the("bread")], means=[KNIFE]
    ),
    "He looks at the man with the knife = Er sieht den Mann mit dem Messer an.": Clause(
        HE, LOOK, [the("man", attachments=[Prepositional("with", "mit", "dat", the("knife"))])]
    ),
    # passive
    "The letters have been written = Die Briefe sind geschrieben worden.": Clause(
        the("letters"), verb("schreiben"), tense="perfect", passive=True
    ),
    # order of adverbials
    "A man reads the book quietly in the garden yesterday = Ein Mann liest gestern das Buch leise im Garten.": Clause(
        the("man", "a"), verb("lesen"), [the("book")], **QUIETLY, place=IN_GARDEN, time=YESTERDAY
    ),
    # coordination, existence, predicate
    "The man and the woman are old = Der Mann und die Frau sind alt.": Clause(
        Coordination(the("man"), the("woman")), None, predicate=Predicate(lexicon.ADJECTIVES[0])
    ),
    "There is no church = Es gibt keine Kirche.": Clause(the("church", "no"), None, existential=True),
    "She sings and wakes up = Sie singt und wacht auf.": Clause(
        SHE, verb("singen"), also=Clause(SHE, verb("aufwachen"))
    ),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentences(sentence):
    assert " = ".join(translated(SENTENCES[sentence])) == sentence


def test_verb_final_clauses_and_infinitives():
    assert after("weil", Clause(HE, LOOK, [the("dog")])) == "weil er den Hund ansieht"
    assert after("dass", Clause(HE, LOOK, [the("dog")], "perfect")) == "dass er den Hund angesehen hat"
    assert after("wenn", Clause(HE, LOOK, [the("dog")], modal=MODALS[1])) == "wenn er den Hund ansehen muss"
    assert after("weil", Clause(HE, verb("fehlen"), [WE])) == "weil wir ihm fehlen"
    assert after("weil", Clause(HE, verb("fehlen"), [the("dogs")])) == "weil ihm die Hunde fehlen"
    assert after("weil", Clause(HE, verb("fehlen"), [Pronoun("someone")])) == "weil ihm jemand fehlt"
    assert german.infinitive(Clause(HE, LOOK, [the("dog")]), HE) == ["den", "Hund", "anzusehen"]
    fronted = Clause(WE, verb("lachen"), adjuncts=[("because", "weil", Clause(HE, LOOK, [the("dog")]), True)])
    assert translated(fronted) == ("Because he looks at the dog , we laugh", "Weil er den Hund ansieht, lachen wir.")
    hurry = Clause(ME, verb("beeilen"))
    trying = Clause(ME, verb("versuchen"), complement=("to", "zu", hurry))
    assert translated(trying)[1] == "Ich versuche, mich zu beeilen."
    forced = Clause(HE, verb("zwingen"), [ME], complement=("to", "zu", hurry))
    assert translated(forced) == ("He forces me to hurry", "Er zwingt mich, mich zu beeilen.")


@pytest.mark.parametrize(
    "noun, clause, of_object, source, translation",
    [
        ("man", Clause(Gap(), LOOK, [SHE]), False, "who looks at her", "der sie ansieht"),
        ("woman", Clause(HE, LOOK, [Gap()]), True, "at whom he looks", "die er ansieht"),
        ("man", Clause(SHE, verb("helfen"), [Gap()]), True, "whom she helps", "dem sie hilft"),
        ("women", Clause(SHE, verb("helfen"), [Gap(True)]), True, "whom she helps", "denen sie hilft"),
        ("dog", Clause(SHE, verb("warten"), [Gap()]), True, "for which she waits", "auf den sie wartet"),
        ("man", Clause(Gap(), verb("fehlen"), [SHE]), False, "who misses her", "dem sie fehlt"),
        ("men", Clause(Gap(True), verb("schlafen")), False, "who sleep", "die schlafen"),
    ],
)
def test_relative_pronouns_agree_and_take_their_case_from_the_verb(noun, clause, of_object, source, translation):
    phrase = relative(the(noun), clause, of_object)
    assert " ".join(leaf.word for leaf in english.noun_phrase(phrase).leaves()) == f"the {noun} {source}"
    assert " ".join(german.noun_phrase(phrase, "nom")).split(" , ")[1].removesuffix(" ,") == translation


@pytest.mark.parametrize(
    "phrase, case, expected",
    [
        (the("dog", "a", "old"), "nom", "ein alter Hund"),
        (the("dog", "a", "old"), "dat", "einem alten Hund"),
        (the("cat", "my", "old"), "dat", "meiner alten Katze"),
        (the("horse", "no", "old"), "acc", "kein altes Pferd"),
        (the("horse", "the", "old"), "acc", "das alte Pferd"),
        (the("horse", "this", "old"), "gen", "dieses alten Pferdes"),
        (the("coffee", "", "hot"), "acc", "heißen Kaffee"),
        (the("dogs", "", "old"), "dat", "alten Hunden"),
        (the("dogs", "many", "old"), "nom", "viele alte Hunde"),
        (the("dogs", "all", "old"), "nom", "alle alten Hunde"),
        (the("dogs", "the", "old", count=23), "nom", "die dreiundzwanzig alten Hunde"),
        (the("student"), "dat", "dem Studenten"),
        (the("cars"), "dat", "den Autos"),
        (the("lamp", "a", "expensive", modifier=("kitchen", "Küchen")), "acc", "eine teure Küchenlampe"),
        (the("cup", "a", content=the("tea").noun), "acc", "eine Tasse Tee"),
        (Name(["Mr.", "Wolf"], ["Herr", "Wolf"]), "acc", "Herrn Wolf"),
    ],
)
def test_noun_phrases(phrase, case, expected):
    assert " ".join(german.noun_phrase(phrase, case)) == expected


def test_prepositions():
    assert german.prepositional(Prepositional("in", "in", "dat", the("house"))) == ["im", "Haus"]
    assert german.prepositional(Prepositional("to", "zu", "dat", the("woman"))) == ["zur", "Frau"]
    assert german.prepositional(Prepositional("in", "in", "dat", the("house", "this"))) == ["in", "diesem", "Haus"]
    far = relative(the("house"), Clause(Gap(), verb("brennen")))
    assert german.prepositional(Prepositional("in", "in", "dat", far))[:3] == ["in", "dem", "Haus"]  # not "im"
    assert german.prepositional(Prepositional("for", "auf", "acc", Pronoun("it", "m", thing=True))) == ["darauf"]
    assert german.prepositional(Prepositional("for", "auf", "acc", Pronoun("it", "m"))) == ["auf", "ihn"]  # an animal
    assert german.prepositional(Prepositional("of", "", "gen", the("man"))) == ["des", "Mannes"]
    assert german.prepositional(Prepositional("of", "", "gen", Name(["Anna"], ["Anna"]))) == ["von", "Anna"]


def test_verb_forms_and_numbers():
    present, past = {}, {}
    for v in lexicon.VERBS:
        present[v.prefix + v.german[0]] = [german.conjugate(v.german, False, person, False) for person in (1, 2, 3)]
        past[v.german[0]] = [german.conjugate(v.german, True, 2, False), german.conjugate(v.german, True, 3, True)]
    expected = {"lesen": "lese liest liest", "arbeiten": "arbeite arbeitest arbeitet", "mögen": "mag magst mag"}
    expected |= {"zeichnen": "zeichne zeichnest zeichnet", "wohnen": "wohne wohnst wohnt", "wissen": "weiß weißt weiß"}
    expected |= {"einladen": "lade lädst lädt"}
    assert {infinitive: " ".join(present[infinitive]) for infinitive in expected} == expected
    assert past["finden"] == ["fandest", "fanden"] and past["kaufen"] == ["kauftest", "kauften"]
    words = ("lie", "run", "open", "forget", "see")
    assert " ".join(map(english.present_participle, words)) == "lying running opening forgetting seeing"
    words = ("carry", "plan", "visit", "play")
    assert " ".join(map(english.regular_past, words)) == "carried planned visited played"
    assert [german.number(n) for n in (2, 12, 21, 30, 999)] == ["zwei", "zwölf", "einundzwanzig", "dreißig", "999"]
    assert [english.number(n) for n in (2, 12, 21, 30, 999)] == ["two", "twelve", "twenty-one", "thirty", "999"]


def test_going_by_vehicle_is_another_verb(toy):
    pairs = zip(lines(toy / "train.en"), lines(toy / "train.de"), strict=True)
    going = re.compile(r"\b(go|goes|going|went|gone)\b[^,]* by (train|car|bicycle)")
    rides = [target for source, target in pairs if going.search(source)]
    assert rides and all(re.search(r"(f[aä]hr|fuhr)", ride) and "mit dem" in ride for ride in rides)


def test_one_translation_for_each_word_in_its_context():
    readings: dict[object, set[str]] = {}
    for adjective in lexicon.ADJECTIVES:
        for kind in adjective.kinds:
            readings.setdefault((adjective.english, kind), set()).add(adjective.german)
    for noun in lexicon.NOUNS:
        readings.setdefault(noun.singular, set()).add(noun.german)
        readings.setdefault(noun.plural, set()).add(noun.german_plural)
    for v in lexicon.VERBS:
        for subject in v.subject:
            for kinds in [slot.kinds for slot in v.objects[-1:]] or ["-"]:
                for kind in kinds:
                    slots = [slot.english for slot in v.objects]
                    key = (v.english, v.particle, v.frame, len(slots), *slots, subject, kind)
                    readings.setdefault(key, set()).add(f"{v.prefix}{v.german[0]}{v.reflexive}")
    assert {key: found for key, found in readings.items() if len(found) > 1} == {}


# -- the corpus ------------------------------------------------------------------------------------------------------


def test_same_tokens_in_text_dependencies_and_brackets(toy):
    nltk = pytest.importorskip("nltk")
    for split, size in SIZES.items():
        texts, trees = lines(toy / f"{split}.en"), lines(toy / f"{split}.en.ptb")
        parsed = sentences(toy / f"{split}.en.conllu")
        assert len(texts) == len(trees) == len(parsed) == len(lines(toy / f"{split}.de")) == size
        for text, brackets, rows in zip(texts, trees, parsed, strict=True):
            tree = nltk.Tree.fromstring(brackets)
            assert text.split(" ") == tree.leaves() == [row[1] for row in rows]
            assert [tag for _, tag in tree.pos()] == [row[4] for row in rows]


def test_dependencies_are_one_projective_tree(toy):
    for rows in sentences(toy / "train.en.conllu"):
        assert all(len(row) == 10 and all(row) for row in rows)
        assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
        heads = [int(row[6]) for row in rows]
        assert [row[7] == "root" for row in rows] == [head == 0 for head in heads] and heads.count(0) == 1
        for word, head in enumerate(heads, start=1):
            seen = {word}
            while head:
                assert head not in seen and 1 <= head <= len(rows)  # no cycle
                seen.add(head)
                head = heads[head - 1]
        arcs = [sorted(arc) for arc in enumerate(heads, start=1)]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs)


def test_every_constituent_has_one_head(toy):
    nltk = pytest.importorskip("nltk")
    for brackets, rows in zip(lines(toy / "valid.en.ptb"), sentences(toy / "valid.en.conllu"), strict=True):
        tree, heads = nltk.Tree.fromstring(brackets), [int(row[6]) for row in rows]
        for position in tree.treepositions():
            if isinstance(tree[position], nltk.Tree):
                before = [tree[position[:i]][j] for i in range(len(position)) for j in range(position[i])]
                start = sum(len(part.leaves()) for part in before)
                inside = range(start + 1, start + 1 + len(tree[position].leaves()))
                assert sum(heads[word - 1] not in inside for word in inside) == 1


def test_dependencies_of_a_coordination():
    tree = english.noun_phrase(Coordination(the("man"), the("woman")))
    assert dependencies(tree) == ([2, 0, 5, 5, 2], ["det", "root", "cc", "det", "conj"])
    assert isinstance(tree, Tree) and tree.brackets() == "(NP (NP (DT the) (NN man)) (CC and) (NP (DT the) (NN woman)))"


def test_english_subjects_agree_with_their_verbs(toy):
    checked = 0
    for rows in sentences(toy / "train.en.conllu"):
        for row in rows:
            if row[7] != "nsubj" or row[4] not in ("NN", "NNS") or rows[int(row[6]) - 1][4] not in ("VBZ", "VBP"):
                continue
            conjoined = any(other[7] == "conj" and other[6] == row[0] for other in rows)
            assert (rows[int(row[6]) - 1][4] == "VBP") == (conjoined or row[4] == "NNS"), rows
            checked += 1
    assert checked > 300


# Forms that cannot follow; separable prefixes that look like prepositions stand before a comma, a full stop or "und".
OWN = "(k?ein|mein|dein|sein|unser)e?"
NOT_DATIVE = re.compile(rf"(das|die|{OWN}|einen|keine|(dies|jed)es|diese|jeden?|ihn|ich|er|sie|wir)$")
NOT_ACCUSATIVE = re.compile(r"(der|\w+em|ich|du|er|wir|mir|dir|ihm|ihnen)$")


@pytest.mark.parametrize(
    "prepositions, wrong", [("mit|von|aus|zu|nach|bei", NOT_DATIVE), ("durch|für|gegen|um", NOT_ACCUSATIVE)]
)
def test_prepositions_govern_their_case(toy, prepositions, wrong):
    following = re.findall(rf"\b(?:{prepositions}) (\w+)", "\n".join(lines(toy / "train.de")))
    assert len(following) > 30 and [word for word in following if wrong.match(word)] == []


def test_subordinate_clauses_end_in_a_finite_verb(toy):
    forms = {"gab", "gibt"}
    parts = [(v.prefix, v.german) for v in lexicon.VERBS]
    parts += [("", (*modal[1:4], "")) for modal in MODALS if modal.infinitive]
    parts += [("", p) for p in (german.HABEN, german.SEIN, german.WERDEN)]
    for prefix, verb_parts in parts:
        for past in (False, True):
            for person, plural in ((1, False), (2, False), (3, False), (3, True)):
                forms.add(prefix + german.conjugate(verb_parts, past, person, plural))
    ends = []
    for line in lines(toy / "train.de"):
        for clause in re.findall(r"\b(?:dass|weil|obwohl|bevor|nachdem|während|damit|bis|ob) ([^,.?]+)[.?]$", line):
            if " und " not in clause and " oder " not in clause and " aber " not in clause:
                ends.append(clause.split()[-1])
    assert len(ends) > 200 and set(ends) <= forms


def test_lengths_and_size_of_the_vocabulary(toy):
    sources, targets = lines(toy / "train.en"), lines(toy / "train.de")
    lengths = [len(source.split()) for source in sources]
    assert min(lengths) >= 3 and max(lengths) <= 40 and 10 <= sum(lengths) / len(lengths) <= 14
    counts: dict[str, int] = {}
    for word in (word for source in sources for word in source.split()):
        counts[word] = counts.get(word, 0) + 1
    ordered = sorted(counts.values(), reverse=True)
    assert len(counts) > 1000 and ordered.count(1) > 200  # rare words and names
    assert ordered[0] > 5 * ordered[20] > 10 * ordered[200]
    assert len({word for target in targets for word in target.split()}) > 3000
    assert all(not target[0].islower() and target[-1] in ".?" and " ," not in target for target in targets)


def test_moses_does_not_change_the_source_tokens(toy):
    moses = pytest.importorskip("sacremoses").MosesTokenizer("en")
    for source in lines(toy / "valid.en"):
        assert moses.tokenize(source, escape=False) == source.split()


def test_splits_share_no_sentence_and_equal_sources_have_one_translation(toy):
    sources = {split: lines(toy / f"{split}.en") for split in SIZES}
    assert len(set(sources["valid"] + sources["test"])) == SIZES["valid"] + SIZES["test"]
    assert not set(sources["train"]) & set(sources["valid"] + sources["test"])
    pairs = set(zip(sources["train"], lines(toy / "train.de"), strict=True))
    assert len(pairs) == len(set(sources["train"]))


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


# The plugin itself is left out: its imports take seconds.
ANOTHER_PROCESS = """
import sys, types
from pathlib import Path
plugin = types.ModuleType("fairseq_diverse")
plugin.__path__ = [sys.argv[1]]
sys.modules["fairseq_diverse"] = plugin
from fairseq_diverse.toy.corpus import write_corpus
write_corpus(Path(sys.argv[2]), 400, 150, 150, seed=3)
"""


def test_files_depend_only_on_sizes_and_seed(toy, tmp_path):
    package = Path(corpus.__file__).parents[1]
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", ANOTHER_PROCESS, package, tmp_path / hash_seed]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        subprocess.run(command, env=environment, check=True, capture_output=True)
    first, larger = digest(tmp_path / "1"), digest(toy)
    assert len(first) == 13 and first == digest(tmp_path / "2")
    same = {f"{split}.{suffix}" for split in ("valid", "test") for suffix in corpus.SUFFIXES}
    assert {name for name in first if first[name] == larger[name]} == same
    assert lines(toy / "train.en")[:400] == lines(tmp_path / "1" / "train.en")
    write_corpus(tmp_path / "other", 50, 150, 150, seed=4)
    assert lines(tmp_path / "other" / "valid.en") != lines(toy / "valid.en")


def test_equal_seeds_give_equal_files_in_every_version(toy):
    """Data hashes of users depend on it: a change here is a change of all their corpora."""
    files = b"".join(path.read_bytes() for path in sorted(toy.iterdir()))
    assert hashlib.sha256(files).hexdigest() == "0adc4024ee0aaf7500bce45d4a6db7a05a2a8fa5c0832e7b3182d0c6c17f9821"


def test_nothing_is_written_when_generation_stops(tmp_path, monkeypatch):
    drawn = iter(range(5))

    def interrupted(given, original=corpus.sentence_pair):
        if next(drawn, None) is None:
            raise KeyboardInterrupt
        return original(given)

    tasks = {"sentence_length": lambda tree: ("0", probing.text(tree)), "word_content": interrupted}
    monkeypatch.setattr(corpus, "sentence_pair", interrupted)
    monkeypatch.setattr(probing, "make_probes", lambda seed: tasks)
    for write in (lambda: write_corpus(tmp_path, 10, 2, 2), lambda: probing.write_probing(tmp_path, 10)):
        with pytest.raises(KeyboardInterrupt):
            write()
        assert list(tmp_path.iterdir()) == []


def test_bad_values(tmp_path, capsys):
    (tmp_path / "probing").write_text("mine")
    file = tmp_path / "probing"
    for out, arguments, complaint in (
        (tmp_path / "toy", ["--sentences", "0"], "--sentences 0: must be at least 1"),
        (tmp_path / "toy", ["--valid", "-3"], "--valid -3: must be at least 1"),
        (tmp_path / "toy", ["--seed", "-1"], "--seed -1: must be 0 or more"),
        (file, ["--sentences", "5"], f"--out {file}: is a file; give a folder"),
        (tmp_path, ["--probing", "10"], f"--out {tmp_path}: has a file named probing; move it, or give another --out"),
    ):
        assert cli(["toy", "--out", str(out), *arguments]) == 2
        assert capsys.readouterr().err == f"fairseq-diverse toy: {complaint}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["probing"] and file.read_text() == "mine"


def test_only_its_own_files_are_overwritten(tmp_path, capsys):
    for size in (3, 4):
        sizes = ["--sentences", str(size), "--valid", "1", "--test", "1"]
        assert cli(["toy", "--out", str(tmp_path / "toy"), *sizes]) == 0
    assert len(lines(tmp_path / "toy" / "train.en")) == 4
    for name in ("train.de", "probing/tree_depth.txt"):
        mine = tmp_path / name.replace("/", "-") / name
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        capsys.readouterr()
        assert cli(["toy", "--out", str(tmp_path / name.replace("/", "-")), "--probing", "100"]) == 2
        assert capsys.readouterr().err.endswith(f"{mine}: exists, and another program wrote it; give another --out\n")
        assert [path.read_text() for path in mine.parent.iterdir()] == ["mine"]


def test_word_by_word_learns_a_lexicon_and_does_not_solve_the_corpus(toy, tmp_path):
    texts = ["the dog sleeps .", "Der Hund schläft."], ["a dog eats .", "Ein Hund frisst."]
    pairs = [*texts, ["a cat sleeps .", "Eine Katze schläft."]]
    assert word_by_word(["dog sleeps , Anna ."], pairs * 3) == ["Hund schläft, Anna."]
    score = float(re.search(r"BLEU ([\d.]+)", word_by_word_score(toy))[1])
    assert 5 < score < 25
