"""tools/opt.py: one pass or stage on one text file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flashover import _C

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = [*(ROOT / "src/graph/passes/test").glob("c*.ir"), *(ROOT / "src").glob("*/test/*.ir")]
GRAPH = """graph {
  %0 : f32[4,8] = input user "x"
  %1 : f32[4,8] = aten.relu.default(%0)
  %2 : f32[4] = aten.sum.dim_IntList(%1, [1], false, None)
  return %2
}
"""


@pytest.fixture(scope="module")
def opt() -> ModuleType:
    spec = importlib.util.spec_from_file_location("opt", ROOT / "tools" / "opt.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["opt"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def run(opt: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: object) -> str:
    monkeypatch.setattr(sys, "argv", ["opt.py", *map(str, args)])
    opt.main()
    return capsys.readouterr().out


@pytest.mark.parametrize("file", GOLDENS, ids=lambda p: p.stem)
def test_text_tests_give_what_they_say(file: Path, opt, capsys, monkeypatch) -> None:
    expected = "".join(part.partition("\n->\n")[2] for part in file.read_text().split("----\n"))
    assert run(opt, capsys, monkeypatch, file) == expected


def test_there_are_text_tests_of_each_level() -> None:
    assert {p.parts[-3] for p in GOLDENS} == {"passes", "loops", "planner"}


def test_passes_and_stages_follow_each_other(tmp_path: Path, opt, capsys, monkeypatch) -> None:
    file = tmp_path / "graph.ir"
    file.write_text(GRAPH)
    stages = _C.stages()
    chain = ["decompose", "expand", *stages[stages.index("build_plan") :]]
    text = run(opt, capsys, monkeypatch, "--pass", ",".join(chain), "--options", "threads=4", file)
    assert text.startswith("plan")
    assert text.count("launch") == 1
    assert "reduce a0" in text


def test_names_that_are_not_there_are_said(tmp_path: Path, opt, capsys, monkeypatch) -> None:
    file = tmp_path / "graph.ir"
    file.write_text(GRAPH)
    for args, message in [
        (["--pass", "decompos"], "no stage named decompos"),
        (["--pass", "decompose", "--machine", "amx"], "no machine has amx"),
        (["--pass", "decompose,expand", "--options", "cores=3"], "no option of the planner: cores=3"),
    ]:
        with pytest.raises(SystemExit, match=message):
            run(opt, capsys, monkeypatch, *args, file)


def test_list_names_passes_and_stages(opt, capsys, monkeypatch) -> None:
    assert run(opt, capsys, monkeypatch, "--list").split() == [row["name"] for row in _C.passes()] + _C.stages()
