"""What modules of the hook path use of `typing`, without importing it: with NamedTuples by the dozen it took an eighth of a hook.

For type checkers these are typing's own names. At run time `NamedTuple` makes the classes that typing's makes (see the tests,
which compare the two), and compiles a class's `__new__` when its first object is made: most classes of a hook never have one.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False

if TYPE_CHECKING or sys.version_info >= (3, 14):  # where annotations are no plain dict any more, leave it to typing
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
    from typing import cast as cast
else:
    from _collections import _tuplegetter  # what collections.namedtuple itself uses

    Any = object

    def cast(_type, value):
        """Return the value; the type is for the checker."""
        return value

    class _Meta(type):
        def __new__(cls, name, bases, space):
            if not any(isinstance(base, _Meta) for base in bases):
                return type.__new__(cls, name, bases, space)
            fields = tuple(space.get("__annotations__", ()))
            defaults = {}
            for number, field in enumerate(fields):
                if field in space:
                    defaults[field] = space[field]
                elif defaults:
                    raise TypeError(f"non-default argument {field!r} follows default arguments")
                if field.startswith("_"):
                    raise ValueError(f"Field names cannot start with an underscore: {field!r}")
                space[field] = _tuplegetter(number, "A field of this record")
            space["_fields"] = space["__match_args__"] = fields
            space["_field_defaults"] = defaults
            space["__slots__"] = ()
            space["__new__"] = _first
            return type(name, (_Record,), space)

    class _Record(tuple):
        """What all records share."""

        __slots__ = ()

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changes):
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            inside = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{self.__class__.__name__}({inside})"

    def _first(cls, /, *values, **named):
        """Stand in for a record's `__new__` until it is called for the first time, and make the real one then."""
        if not values and not named and len(cls._field_defaults) == len(cls._fields):
            return tuple.__new__(cls, cls._field_defaults.values())  # settings are made of a dozen such
        owner = next(one for one in cls.__mro__ if getattr(one.__dict__.get("__new__"), "__func__", None) is _first)
        defaults = owner._field_defaults
        names = ", ".join(f"{name}=_defaults[{name!r}]" if name in defaults else name for name in owner._fields)
        inside = "".join(f"{name}, " for name in owner._fields)
        space = {
            "_defaults": defaults,
            "_new": tuple.__new__,
            "__builtins__": {},
            "__name__": f"namedtuple_{owner.__name__}",
        }
        made = eval(f"lambda _cls, {names}: _new(_cls, ({inside}))", space)  # noqa: S307 - names of our own fields
        made.__name__ = "__new__"
        owner.__new__ = staticmethod(made)
        return made(cls, *values, **named)

    NamedTuple = _Meta("NamedTuple", (), {})
