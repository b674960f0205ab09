import multiprocessing
import time

from tests.integration.commands import cli


def test_a_fork_leaves_the_workers_of_its_parent_alone():
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    try:
        assert cli("--version").returncode == 0
        assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()
