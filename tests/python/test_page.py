"""The page around the user's source: heat by line, fused groups, breaks at their lines, modules, its script."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import flashover
from flashover._page_parts import SCRIPT, highlighted
from flashover._page_source import by_line, module_tree


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(self.linear(self.norm(x)))
        return x + y


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            x = b(x)
        if x.sum() > 1e9:
            x = x * 2
        return x.sin() + 1


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.strip() == text)


@pytest.fixture(scope="module")
def explained() -> flashover.Explanation:
    with torch.no_grad():
        return flashover.explain(Net().eval(), measure=True)(torch.randn(64, 64))


def test_each_line_has_its_part(explained: flashover.Explanation) -> None:
    lines = by_line(explained)
    assert list(lines) == [__file__]
    of = lines[__file__]
    assert sum(line.part for line in of.values()) == pytest.approx(1.0)
    heavy = line_of("y = torch.nn.functional.gelu(self.linear(self.norm(x)))")
    assert of[heavy].part == max(line.part for line in of.values())
    assert {name for _, name, _ in of[heavy].steps} >= {"layer_norm"}
    assert len(of[line_of("if x.sum() > 1e9:")].breaks) == 1


def test_the_page_shows_the_program(explained: flashover.Explanation) -> None:
    page = explained.to_html()
    code = [re.sub(r"<[^>]+>", "", c) for c in re.findall(r"<td class=code>(.*?)</td>", page)]
    assert "        y = torch.nn.functional.gelu(self.linear(self.norm(x)))" in code
    assert "        if x.sum() &gt; 1e9:" in code
    at = page.index("if x.sum() &gt; 1e9:")
    assert "graph break</b>, 1 time" in page[at : at + 1500] and "torch.where" in page[at : at + 1500]
    for link in re.findall(r'href="#(\w+)"', page):  # to a row of the table of steps
        assert f"id={link} " in page
    assert "of eager&#x27;s speed" in page and "of what copying reaches" in page
    assert "prefers-color-scheme: dark" in page and "max-width: 700px" in page and "width=device-width" in page


def test_modules_are_a_tree(explained: flashover.Explanation) -> None:
    root = module_tree(explained)
    blocks = root.inner["self"].inner["blocks"]
    assert set(blocks.inner) == {"0", "1"} and set(blocks.inner["0"].inner) >= {"norm", "linear"}
    assert sum(b.part for b in blocks.inner.values()) == pytest.approx(blocks.part)
    assert root.part >= root.inner["self"].part


def test_a_program_of_libraries_alone_is_shown_too() -> None:
    with torch.no_grad():
        page = flashover.explain(torch.nn.Linear(4, 4))(torch.ones(2, 4)).to_html()
    assert "Your program" in page and "F.linear" in page


def test_versions_are_a_table() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    run = flashover.explain(f)
    run(torch.ones(3))
    page = run(torch.ones(4)).to_html()
    assert "<h2>Versions</h2>" in page and "x.shape[0]" in page


def test_sources_are_coloured_and_escaped() -> None:
    shown = highlighted('for (int i = 0; i < 3; ++i) a[i] = "<b>";  // <i>')
    assert "<span class=k>for</span>" in shown and "<span class=c>// &lt;i&gt;</span>" in shown
    assert "<b>" not in shown and "&quot;&lt;b&gt;&quot;" in shown and "<span class=d>3</span>" in shown


def test_the_script_is_javascript(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to read it")
    (tmp_path / "page.js").write_text(SCRIPT)
    subprocess.run([node, "--check", tmp_path / "page.js"], check=True)


def test_a_browser_takes_the_page(explained: flashover.Explanation, tmp_path: Path) -> None:
    """Its policy lets its script and styles run, and the browser's own reading of it has all rows."""
    browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no headless browser (apt install chromium-headless-shell)")
    page = tmp_path / "page.html"
    explained.save(page)
    done = subprocess.run(
        [browser, "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--enable-logging=stderr",
         "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert "Refused" not in done.stderr and "violates" not in done.stderr and "Uncaught" not in done.stderr
    steps = sum(len(g["steps"]) for g in explained.graphs)
    assert len(re.findall(r'<tr id="g\d+s\d+"', done.stdout)) == steps
