"""A failure of ours is told in its own sentence, without the frames that Spark, Java and Python put around it.

- In a worker of Spark, methods of the data source tell PySpark to leave Python's frames out (`alone`). Any session's
  messages then hold the sentence on their first line.
- In a driver, `tell_sentences` lets PySpark's exceptions consist of the sentence. Sessions of `spark_session` do so.

With HEADRACE_DEBUG in the environment nothing is left out. Failures of others stay as they are.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final, TypeVar

from headrace.base.errors import HeadraceError

T = TypeVar("T", bound=type)
DEBUG: Final = "HEADRACE_DEBUG"
HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""With this in its environment, a worker of Spark tells an exception without its frames."""
WORKERS: Final = ("pyspark.", "headrace.spark.session.daemon")
"""How the names of the modules begin that Spark's workers run."""
_OURS: Final = re.compile(r"(?:^|(?<=\s))headrace(?:\.\w+)+: (\S.*)")


def sentence_of(text: str) -> str | None:
    """The sentence of an exception of ours that is told of in this text; None where there is none."""
    found = _OURS.search(text)
    return None if found is None else found[1].strip()


def alone(kind: T) -> T:
    """Decorate a class: where one of its public methods raises an error of ours, a worker tells that alone."""
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(kind, name, _alone(member))
    return kind


def tell_sentences() -> None:
    """From now on, an exception that PySpark makes of a failure of ours consists of our sentence, in this process."""
    from pyspark.errors.exceptions import captured

    if not os.environ.get(DEBUG) and not hasattr(captured.convert_exception, "__wrapped__"):
        captured.convert_exception = _converting(captured.convert_exception)  # type: ignore[assignment]


def _converting(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    from pyspark.errors.exceptions.captured import PythonException, UnknownException

    @functools.wraps(convert)
    def converted(java: Any) -> Any:
        found = convert(java)
        sentence = sentence_of(str(found))
        if sentence is None:
            return found
        if isinstance(found, UnknownException | PythonException):  # PySpark does not raise the first kind
            return PythonException(desc=sentence, stackTrace=found._stackTrace)
        found._desc = sentence
        return found

    return converted


def _alone(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def told(*given: Any, **named: Any) -> Any:
        with _without_frames():
            found = method(*given, **named)
        return _each(found) if isinstance(found, Generator) else found

    return told


def _each(rows: Generator[Any, None, None]) -> Iterator[Any]:
    with _without_frames():
        yield from rows


@contextmanager
def _without_frames() -> Iterator[None]:
    """The worker ends with this exception, so it need not be asked to show frames again."""
    try:
        yield
    except HeadraceError:
        if _is_worker() and not os.environ.get(DEBUG):
            os.environ[HIDE] = "1"
        raise


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(WORKERS)
