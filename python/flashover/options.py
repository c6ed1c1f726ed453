"""Modes and options of compile(). The options table itself is src/base/options.def."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashover import _C, _torch_settings
from flashover._nearest import did_you_mean
from flashover.exc import InvalidOptions

# mode -> the options it stands for.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"max_autotune": True, "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
    "lite": {},
}
_TYPES = {"bool": bool, "int": int, "str": str}


def list_modes() -> list[str]:
    """The names that compile() takes as `mode`."""
    return list(MODES)


def list_options() -> dict[str, tuple[str, str, str]]:
    """name -> (type, default, what it does)."""
    table = {}
    for name, (kind, default, doc) in _C.options().items():
        least, most = _C.option_ranges().get(name, (None, None))
        table[name] = (kind, default, doc if least is None else f"{doc} ({least} to {most})")
    return table


def resolve(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, str]:
    """Checks mode and options; what is asked for, as text."""
    if mode is not None and options is not None:
        raise InvalidOptions("either mode or options can be given, not both at the same time")
    if mode is not None and mode not in MODES:
        raise InvalidOptions(f"unknown mode {mode!r}; {did_you_mean(mode, MODES)}: {', '.join(MODES)}")
    if options is None:
        options = MODES[mode or "default"]
    elif not isinstance(options, Mapping):
        raise InvalidOptions(f"options must be a mapping of names to values, not {type(options).__name__}")
    own, inductors = _sorted_out(options)
    for name, given in inductors.items():
        for key, translated in _torch_settings.from_inductor(name, given).items():
            own.setdefault(key, translated)
    table = _C.options()
    defaults = {name: default for name, (_, default, _) in table.items()}
    own = _torch_settings.with_torchs(own, defaults)
    values = {key: _checked(key, table[key][0], given) for key, given in own.items()}
    _check_together(values)
    return values


def _check_together(values: Mapping[str, str]) -> None:
    """Promises that exclude each other."""
    if values.get("batch_invariant") != "True":
        return
    if values.get("strict_numerics") == "True":
        raise InvalidOptions(
            "options 'strict_numerics' and 'batch_invariant': eager's bits of a row change with the batch, so only one "
            "of them can be had"
        )
    if values.get("compile") == "background":
        raise InvalidOptions("options 'batch_invariant' and 'compile=background': the first calls would run eager")


def for_backend(mode: str | None, options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was given beside a backend of the user's: options that are ours, and the keyword arguments that are its."""
    if mode is not None and options is not None:
        raise InvalidOptions("either mode or options can be given, not both at the same time")
    given = dict(options or {})
    own = {name: given.pop(name) for name in (*_C.options(), "guard_filter_fn") if name in given}
    arguments: dict[str, Any] = {"mode": mode} if mode not in (None, "default") else {}
    return own, {**arguments, "options": given} if given else arguments


def _sorted_out(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of our own table, and Inductor's. max_autotune is a name in both, of the same meaning."""
    table = _C.options()
    own: dict[str, Any] = {}
    inductors: dict[str, Any] = {}
    for name, given in options.items():
        key = str(name).replace("-", "_")
        if key in own:
            raise InvalidOptions(f"option {key!r} is given twice")
        if key in table:
            own[key] = given
        elif _torch_settings.is_inductor_option(key):
            inductors[key] = given
        else:
            raise InvalidOptions(f"unknown option {name!r}; {did_you_mean(key, table)}: {', '.join(sorted(table))}")
    return own, inductors


def value(values: Mapping[str, str], name: str) -> str:
    """An option's value as text: what was asked for, or the table's default."""
    return values.get(name, _C.options()[name][1])


def typed(values: Mapping[str, str]) -> dict[str, Any]:
    """Checked options as flashover.compile takes them."""
    table = _C.options()
    make: dict[str, Any] = {"bool": lambda text: text == "True", "int": int, "str": str}
    return {name: make[table[name][0]](text) for name, text in values.items()}


def _checked(name: str, kind: str, value: Any) -> str:
    """The value as text, if it is of the option's type and in its range."""
    if type(value) is not _TYPES[kind]:
        raise InvalidOptions(f"option {name!r} must be {kind}, not {type(value).__name__} {_shown(value)}")
    if kind == "int":
        least, most = _C.option_ranges()[name]
        if not least <= value <= most:
            raise InvalidOptions(f"option {name!r} must be from {least} to {most}, not {_shown(value)}")
    if kind == "str":
        try:
            usable = b"\0" not in value.encode()
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise InvalidOptions(f"option {name!r} must be text without NUL and lone surrogates, not {_shown(value)}")
    choices = _C.option_choices().get(name)
    if choices is not None and value not in choices:
        near = did_you_mean(value, choices)
        raise InvalidOptions(f"option {name!r}: {_shown(value)} is none of its values; {near}: {', '.join(choices)}")
    if name == "disable_passes":
        known = [row["name"] for row in _C.passes()]
        for given in filter(None, value.split(",")):
            if given not in known:
                near = did_you_mean(given, known)
                raise InvalidOptions(f"option 'disable_passes': no pass {given!r}; {near}: {', '.join(known)}")
    return str(value)


def _shown(value: Any) -> str:
    """repr(), cut short. It may fail: Python prints no integers of more than 4,300 digits."""
    try:
        text = repr(value)
    except Exception as e:
        return f"a value that cannot be shown ({type(e).__name__})"
    return text if len(text) <= 100 else f"{text[:97]}..."
