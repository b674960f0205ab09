"""Everything here runs the command line end to end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.commands import make_data, programs_as_forks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The programs that scripts call are forks of this process."""
    with programs_as_forks(tmp_path_factory.mktemp("forks")) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
