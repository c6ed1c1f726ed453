"""Exceptions inside compiled code: groups, and what they say of their objects."""

from __future__ import annotations

from comparing import both_ways

import flashover


def test_exceptions_raised_in_except_star() -> None:
    def program() -> str:
        flashover.graph_break()
        try:
            try:
                raise ExceptionGroup("g", [TypeError(1), KeyError(2), ExceptionGroup("h", [KeyError(3), OSError(4)])])
            except* TypeError:
                raise RuntimeError("new") from None
            except* KeyError:
                raise
        except Exception as e:
            return repr(e)

    def whole() -> str:
        try:
            try:
                raise ExceptionGroup("g", [TypeError(1), KeyError(2)])
            except* TypeError:
                raise RuntimeError("new") from None
        except Exception as e:
            return repr(e)

    both_ways(program, (), ())
    both_ways(whole, (), (), fullgraph=True)


def test_whose_attribute_was_missing() -> None:
    class Empty:
        def __getattr__(self, name: str) -> object:
            raise AttributeError

    empty = Empty()

    def program() -> tuple:
        try:
            empty.missing  # noqa: B018
        except AttributeError as e:
            return e.name, e.obj is empty, e.args

    both_ways(program, (), fullgraph=True)
