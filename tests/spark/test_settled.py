"""A worker keeps its memory: data that is made and dropped repeatedly costs no page. The collector does not scan its
imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKED = """
import resource
from headrace.spark.read.settled import KEPT_BYTES, keep_pages

def work():
    return [b"x" * size for _ in range(6)]

assert keep_pages()
size = KEPT_BYTES // 8
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, size // resource.getpagesize())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries keep what they like")
def test_what_is_dropped_is_taken_again_without_new_pages() -> None:
    asked = subprocess.run([sys.executable, "-c", ASKED], check=True, capture_output=True, text=True, timeout=150)
    found, pages_of_one = map(int, asked.stdout.split())
    assert found < pages_of_one


def test_what_a_worker_has_imported_is_not_looked_through_again() -> None:
    asked = "import gc; from headrace.spark.read.settled import settle; settle(); "
    asked += "print(gc.get_freeze_count(), gc.collect())"
    answer = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True, timeout=150)
    frozen, found = map(int, answer.stdout.split())
    assert frozen > 1000
    assert found == 0


def test_what_its_first_task_has_made_is_not_looked_through_again_either() -> None:
    asked = """if True:
        import gc
        from headrace.spark.read.settled import settle, settle_first
        settle()
        kept, before = [[] for _ in range(10_000)], gc.get_freeze_count()
        settle_first()
        more = gc.get_freeze_count() - before
        garbage = [[] for _ in range(10_000)]
        settle_first()
        print(more, gc.get_freeze_count() - before - more)
    """
    answer = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True, timeout=150)
    more, later = map(int, answer.stdout.split())
    assert more >= 10_000
    assert later <= 0, "once is enough"
