import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup


def readme() -> str:
    """README.md for a page elsewhere: its links and pictures are the files of this version in the repository."""
    address = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    version = re.search(r'__version__ = "(.+)"', Path("fairseq_diverse/__init__.py").read_text(encoding="utf-8"))[1]
    text = re.sub(r"^<!--.*-->\n", "", Path("README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:)", rf"\1{address}/raw/v{version}/", text)
    return re.sub(r"(\]\()(?!\w+:)", rf"\1{address}/blob/v{version}/", text)


# Everything else is in pyproject.toml; configs/ lies beside the package and is installed inside it.
setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    packages=[*find_packages(include=["fairseq_diverse", "fairseq_diverse.*"]), "fairseq_diverse.configs"],
    package_dir={"fairseq_diverse.configs": "configs"},
    package_data={
        "fairseq_diverse": ["py.typed"],
        "fairseq_diverse.configs": ["*/*.yaml"],
        "fairseq_diverse.attention.kernels": ["*.c"],
        "fairseq_diverse.reports": ["templates/*"],
        "fairseq_diverse.toy": ["words.yaml"],
    },
    # an editable install by the path of the checkout: else a folder named fairseq_diverse where Python starts, such as
    # the clone itself, is imported in place of the package
    options={"editable_wheel": {"mode": "compat"}},
)
