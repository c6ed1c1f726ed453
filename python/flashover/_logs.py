"""Logs through Python's logging: a logger for each topic (flashover.recompiles, flashover.breaks, ...)."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable

import torch

from flashover import _C
from flashover._nearest import did_you_mean
from flashover._reasons import reason_of
from flashover._stacks import called_from, of_user

ROOT = "flashover"
TOPICS: tuple[str, ...] = tuple(_C.log_topics())
_asked: dict[str, set[str]] = {"flashover": set(), "torch": set()}  # topics, by who asks for them
_OF_TORCH = {  # names of TORCH_LOGS
    "recompiles": "recompiles",
    "recompiles_verbose": "recompiles",
    "graph_breaks": "breaks",
    "guards": "guards",
    "verbose_guards": "guards",
    "graph": "graph",
    "graph_code": "graph",
    "graph_code_verbose": "graph",
    "aot_graphs": "graph",
    "aot_joint_graph": "graph",
    "output_code": "kernels",
    "kernel_code": "kernels",
    "schedule": "plan",
    "fusion": "plan",
}


class _Topic(logging.Logger):
    """Its level says whether the compiler makes the text at all."""

    def setLevel(self, level: int | str) -> None:
        super().setLevel(level)
        _follow_levels()


class _Stderr(logging.Handler):
    """Each line with its topic in front, to what sys.stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            topic = record.name.removeprefix(f"{ROOT}.")
            sys.stderr.write("".join(f"[{ROOT} {topic}] {line}\n" for line in record.getMessage().split("\n")))
        except Exception:
            self.handleError(record)


def _follow_levels() -> None:
    _C.set_logs(",".join(name for name, logger in _loggers.items() if logger.level <= logging.INFO))


def _made(name: str) -> logging.Logger:
    """The logger of a topic. One that the program got before this package was imported keeps its handlers and level."""
    before = logging.getLoggerClass()
    logging.setLoggerClass(_Topic)
    try:
        logger = logging.getLogger(f"{ROOT}.{name}")
    finally:
        logging.setLoggerClass(before)
    if not isinstance(logger, _Topic):
        logger.__class__ = _Topic
    if logger.level == logging.NOTSET:  # else it would take the root's, and with it all that the compiler has to say
        logging.Logger.setLevel(logger, logging.WARNING)
    return logger


def _sink(topic: str, text: str, reason: str, stack: str) -> None:
    """What the compiler logs. To a break belong the frames that led there and what helps; the record has the name of
    its reason, too: `record.flashover_reason`."""
    if not reason:
        _loggers[topic].info("%s", text)
        return
    row = reason_of(reason)
    helps = [f"  {row.title}: {row.hints[0]}", f"  More: {row.docs}"]
    _loggers[topic].info(
        "%s", "\n".join([text, *called_from(of_user(stack)), *helps]), extra={"flashover_reason": row.name}
    )


def set_logs(topics: str = "", **named: bool) -> None:
    """Writes these topics (with commas between; "all"; "": none) to stderr, as FLASHOVER_LOGS does. Topics may be named
    as torch's set_logs has it, too: set_logs(recompiles=True).

    The same by logging: logging.getLogger("flashover.recompiles").setLevel(logging.INFO) hands them to the program's
    own handlers. An unknown topic is a warning.
    """
    wanted = {word.strip() for word in topics.split(",")} - {""}
    wanted |= {name for name, on in named.items() if on}
    for unknown in sorted(wanted - {*TOPICS, "all"}):
        names = (*TOPICS, "all")
        warnings.warn(
            f"FLASHOVER_LOGS: no topic {unknown!r}; {did_you_mean(unknown, names)}: {', '.join(names)}",
            RuntimeWarning,
            stacklevel=2,
        )
    _asked["flashover"] = set(TOPICS) if "all" in wanted else wanted & set(TOPICS)
    _write(TOPICS)


def _write(topics: Iterable[str]) -> None:
    """Those of these topics that somebody asks for, to stderr."""
    for name in topics:
        logger, on = _loggers[name], any(name in asked for asked in _asked.values())
        logging.Logger.setLevel(logger, logging.INFO if on else logging.WARNING)
        logger.propagate = not on  # or a program with handlers of its own would see each line twice
        if on and _stderr not in logger.handlers:
            logger.addHandler(_stderr)
        elif not on:
            logger.removeHandler(_stderr)
    _follow_levels()


def follow_torch() -> None:
    """TORCH_LOGS and torch._logging.set_logs: the topics that stand for what they name, from the next compile() on."""
    state = getattr(getattr(torch._logging, "_internal", None), "log_state", None)
    names = getattr(state, "artifact_names", ())
    wanted = {_OF_TORCH[name] for name in names if name in _OF_TORCH}
    if changed := wanted ^ _asked["torch"]:  # the others keep the levels that the program gave them
        _asked["torch"] = wanted
        _write(changed)


_stderr = _Stderr()
_loggers: dict[str, logging.Logger] = {name: _made(name) for name in TOPICS}
_C.set_log_sink(_sink)
_follow_levels()
