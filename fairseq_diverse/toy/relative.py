"""Relative clauses."""

from dataclasses import dataclass

from fairseq_diverse.toy import english_order, german, german_order
from fairseq_diverse.toy.clauses import Clause
from fairseq_diverse.toy.phrases import preposition
from fairseq_diverse.toy.trees import Tree, leaf, phrase


@dataclass
class Relative:
    """``clause`` has a Gap as its one object (``of_object``) or as its subject; ``person``: the antecedent is one."""

    clause: Clause
    of_object: bool
    person: bool

    def english(self) -> Tree:
        slot = self.clause.verb.objects[0] if self.of_object and self.clause.verb else None
        if self.person:
            word = leaf("WP", "whom" if slot else "who", "who")
        else:
            word = leaf("WDT", "which" if slot and slot.english else "that", universal="PRON")
        pronoun = phrase("WHNP", ("head", word))
        relation = "obj" if slot else english_order.subject_relation(self.clause)
        if slot and slot.english:
            relation, pronoun = "obl", preposition(slot.english, pronoun, "WHPP")
        return phrase("SBAR", (relation, pronoun), ("head", english_order.clause(self.clause)))

    def german(self, gender: str) -> list[str]:
        """The pronoun takes its gender (p: plural) from the antecedent and its case from the verb."""
        verb = self.clause.verb
        case, before = verb.subject_case if verb else "nom", ""
        if self.of_object and verb:
            case, before = verb.objects[0].case, verb.objects[0].german
        pronoun = german.RELATIVE[gender][german.CASES.index(case)]
        return [",", *before.split(), pronoun, *german_order.subordinate(self.clause, ""), ","]
