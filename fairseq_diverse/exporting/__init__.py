"""Checkpoints for other programs: plain fairseq, CTranslate2."""
