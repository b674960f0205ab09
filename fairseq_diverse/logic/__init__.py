"""Formulae of propositional logic and the relations between them (Bowman et al., 2015)."""
