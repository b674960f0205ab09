from setuptools import find_packages, setup

# Everything else is in pyproject.toml; configs/ lies beside the package and is installed inside it.
setup(
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
