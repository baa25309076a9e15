"""Dataclasses that cost little until they are used.

For a frozen dataclass the standard library writes and compiles six functions, as soon as it is imported. A broker
imports 360 of them, and a test's broker makes instances of 80. Here `__init__` is written when the first instance is
made, and the others are not written for each class at all.

Promises:
- A class, its instances, `fields`, `replace`, `asdict`, pickles and copies are as the standard library has them, and
  type checkers see its own `dataclass`. The options that no module uses are not taken.
- Instances are made, compared and hashed as quickly.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from collections.abc import Callable, Iterator, Mapping
    from operator import attrgetter
    from reprlib import recursive_repr
    from typing import Any, Final

    MISSING: Final = dataclasses.MISSING
    Field = dataclasses.Field[Any]

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        kw_only: bool = False,
        eq: bool = True,
        repr: bool = True,  # noqa: A002 - its name there
    ) -> Any:
        """As `dataclasses.dataclass`. Fields that are not of `__init__` have no default."""

        def decorated(cls: type) -> type:
            own = frozenset(cls.__dict__)
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            every = dataclasses.fields(made)
            of_init = tuple(each for each in every if each.init)
            others = [each for each in every if not each.init]
            assert all(each.hash is None for each in every)
            assert all(each.default is each.default_factory is MISSING for each in others)
            methods = {"__init__": _first_init(made, of_init, frozen=frozen)}
            if repr:
                methods["__repr__"] = _repr(tuple(each.name for each in every if each.repr))
            if eq:
                read = _reader([each.name for each in every if each.compare])
                methods["__eq__"] = _eq(read)
                methods["__hash__"] = _hash(read) if frozen else None
            for name, method in methods.items():
                if name not in own:
                    setattr(made, name, method)
            if frozen:
                _freeze(made, tuple(each.name for each in every), slots=slots)
            return made

        return decorated if cls is None else decorated(cls)

    def _first_init(cls: type, of_init: tuple[Field, ...], *, frozen: bool) -> Callable[..., None]:
        """Return an `__init__` that puts the real one in its place when the first instance is made."""

        def first(self: Any, /, *values: Any, **named: Any) -> None:
            cls.__init__ = real = _init(cls, of_init, frozen=frozen)
            real(self, *values, **named)

        return first

    def _init(cls: type, of_init: tuple[Field, ...], *, frozen: bool) -> Callable[..., None]:
        known: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
        lines = list(_assignments(of_init, known, frozen=frozen))
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        by_place = [_parameter(each, known) for each in of_init if not each.kw_only]
        by_name = [_parameter(each, known) for each in of_init if each.kw_only]
        parameters = ", ".join(["self", *by_place, *(["*"] if by_name else []), *by_name])
        body = "\n ".join(lines or ["pass"])
        exec(f"def __init__({parameters}):\n {body}", known)
        made: Callable[..., None] = known["__init__"]
        made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
        return made

    def _assignments(of_init: tuple[Field, ...], known: dict[str, Any], *, frozen: bool) -> Iterator[str]:
        for each in of_init:
            value = each.name
            if each.default_factory is not MISSING:
                known[f"_make_{value}"] = each.default_factory
                value = f"_make_{value}() if {value} is _missing else {value}"
            yield f"_set(self, '{each.name}', {value})" if frozen else f"self.{each.name} = {value}"

    def _parameter(field: Field, known: dict[str, Any]) -> str:
        if field.default_factory is not MISSING:
            return f"{field.name}=_missing"
        if field.default is MISSING:
            return field.name
        known[f"_default_{field.name}"] = field.default
        return f"{field.name}=_default_{field.name}"

    def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
        @recursive_repr()
        def text(self: Any) -> str:
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            return f"{self.__class__.__qualname__}({values})"

        return text

    def _reader(names: list[str]) -> Callable[[Any], Any]:
        """Return a function that reads these attributes, as a tuple."""
        if len(names) > 1:
            return attrgetter(*names)
        return (lambda self: (getattr(self, names[0]),)) if names else lambda self: ()

    def _eq(read: Callable[[Any], Any]) -> Callable[[Any, object], Any]:
        def equal(self: Any, other: object) -> Any:
            return read(self) == read(other) if other.__class__ is self.__class__ else NotImplemented

        return equal

    def _hash(read: Callable[[Any], Any]) -> Callable[[Any], int]:
        def hashed(self: Any) -> int:
            return hash(read(self))

        return hashed

    def _freeze(cls: type, names: tuple[str, ...], *, slots: bool) -> None:
        def set_(self: Any, name: str, value: Any) -> None:
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def delete(self: Any, name: str) -> None:
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        cls.__setattr__, cls.__delattr__ = set_, delete
        if slots:
            for name, method in _pickling(names).items():
                if name not in cls.__dict__:
                    setattr(cls, name, method)

    def _pickling(names: tuple[str, ...]) -> Mapping[str, Callable[..., Any]]:
        """Return the methods by which frozen slots are pickled and copied, in the standard library's form."""

        def read(self: Any) -> list[Any]:
            return [getattr(self, name) for name in names]

        def restore(self: Any, state: list[Any]) -> None:
            for name, value in zip(names, state, strict=True):
                object.__setattr__(self, name, value)

        return {"__getstate__": read, "__setstate__": restore}
