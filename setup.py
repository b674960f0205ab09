import re
from pathlib import Path

from setuptools import find_packages, setup

EXTRAS = {
    "syntax": ["spacy", "benepar", "torch-struct", "transformers>=4.57,<5", "nltk"],
    "metrics": ["jiwer", "pycocoevalcap", "transformers>=4.57,<5"],
    "chinese": ["jieba"],
    "slurm": ["submitit"],
    "plots": ["matplotlib", "scikit-learn"],
    "completion": ["shtab"],
    "dev": [
        *("ruff", "mypy", "pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "x-transformers"),
        'triton; platform_system == "Linux"',
    ],
}

setup(
    name="fairseq-diverse",
    version=re.search(r'__version__ = "(.+)"', Path("fairseq_diverse/__init__.py").read_text(encoding="utf-8"))[1],
    description="Attention diversity for neural machine translation: a fairseq plugin",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    packages=[*find_packages(include=["fairseq_diverse", "fairseq_diverse.*"]), "fairseq_diverse.configs"],
    package_dir={"fairseq_diverse.configs": "configs"},
    package_data={
        "fairseq_diverse": ["py.typed"],
        "fairseq_diverse.configs": ["*/*.yaml"],
        "fairseq_diverse.attention.kernels": ["*.c"],
        "fairseq_diverse.toy": ["words.yaml"],
    },
    install_requires=[
        "fairseq-fixed==0.12.3.1",
        "torch>=2.6",
        "numpy",
        "omegaconf",
        "scipy",
        "sacrebleu>=2.4",
        "sacremoses",
        "subword-nmt>=0.3.8",
        "sentencepiece",
        "tqdm",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["fairseq-diverse=fairseq_diverse.cli:main"]},
)
