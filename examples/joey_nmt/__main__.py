"""``python -m joeynmt`` with mechanisms: ``python -m examples.joey_nmt train CONFIG``."""

from joeynmt.__main__ import main

from examples.joey_nmt.adapter import install

install()
main()
