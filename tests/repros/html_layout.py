"""explain().to_html(): words stand apart, singular is singular, steps that run once come after those of a call, files
are short, and a kernel's source does not widen the page."""

import re

import torch
from torch import nn

import flashover

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
with torch.no_grad():
    explained = flashover.explain(model)(torch.randn(2, 3, 8, 8))
page = explained.to_html()
assert "<p>1 graph, 0 graph breaks" in page
assert not re.search(r"[a-z]</b><span class=small>", page)
rows = re.findall(r"<tr id=\w+ class=(\w+)>", page)
assert rows and rows == sorted(rows, key=lambda kind: kind == "frozen"), rows
assert "site-packages/" not in re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)
assert "pre-wrap" in page
