"""What the parts of an explanation's page share: escaping, colours of source text, styles and the page's own script."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from typing import Any

STYLE = """
:root { --ink: #222; --paper: #fff; --soft: #f6f6f4; --rule: #ddd; --dim: #666; --kernel: #0b5345; --extern: #8a4b08;
  --bar: #7aa6c2; --warn: #fff3d6; --heat: 24; color-scheme: light dark }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #16181a; --soft: #202326; --rule: #3a3d40;
  --dim: #9aa0a6; --kernel: #6fd3b8; --extern: #e0a566; --bar: #4d7d9c; --warn: #3d3318 } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1300px; padding: 0 1em;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.6em } h2 { font-size: 1.25em; margin-top: 2em; border-bottom: 1px solid var(--rule) }
h3 { font: 600 13px monospace; margin-bottom: .3em }
pre { background: var(--soft); padding: .6em; overflow-x: auto; font-size: 12px; margin: .3em 0 }
td pre { white-space: pre-wrap; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100%; font-size: 13px }
td, th { text-align: left; padding: 2px 8px; border-bottom: 1px solid var(--rule); vertical-align: top }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
th.sorts { cursor: pointer } th.sorts:hover { text-decoration: underline }
.bar { background: var(--bar); height: 9px; display: inline-block; min-width: 1px }
.extern { color: var(--extern) } .kernel { color: var(--kernel) } .copy { color: var(--dim) } .frozen { opacity: .6 }
.warn { background: var(--warn); padding: .5em .8em; margin: .4em 0; border-left: 4px solid #e0a800 }
.small { color: var(--dim); font-size: 12px } summary { cursor: pointer }
.cards { display: flex; flex-wrap: wrap; gap: .8em; margin: 1em 0 }
.card { background: var(--soft); border-radius: 8px; padding: .6em 1em; min-width: 8em }
.card b { display: block; font-size: 1.3em }
.source { font-size: 12.5px } .source td { border: 0; padding: 0 8px } .source .code { width: 60%; white-space: pre;
  background: linear-gradient(90deg, rgb(230 120 40 / calc(var(--heat) * .45)), transparent 85%) }
.source td.heat { text-align: right; color: var(--dim); width: 3.5em } .source td.n { color: var(--dim); width: 4em }
.source .gap td { color: var(--dim) } .note td { background: var(--warn); white-space: normal; padding: .3em .8em }
.break { color: #d33; margin-right: .4em }
.chip { background: hsl(var(--hue) 60% 50% / .25); border-left: 4px solid hsl(var(--hue) 60% 50%); border-radius: 3px;
  padding: 0 5px; font-size: 11.5px; text-decoration: none; color: inherit; white-space: nowrap }
tr:target td { background: var(--warn) }
.tree details, .tree .leaf { margin-left: 1.2em; position: relative }
.flame { position: absolute; left: 0; height: 1.4em; background: var(--bar); opacity: .25; border-radius: 3px;
  z-index: -1 }
.tree { isolation: isolate }
.k { color: #8250df } .c { color: #6e7781; font-style: italic } .s { color: #0a7d40 } .d { color: #b35900 }
input.find { font: inherit; padding: .2em .6em; width: 20em; max-width: 100%; margin: .4em 0 }
@media (max-width: 700px) { body { margin: .5em auto; padding: 0 .5em } td, th { padding: 2px 4px }
  .source .code { width: auto; white-space: pre-wrap } table { display: block; overflow-x: auto } }
"""

# Rows of a table are looked through, and sorted by the number or text of a column.
SCRIPT = """
"use strict";
document.addEventListener("input", (event) => {
  if (!event.target.classList.contains("find")) return;
  const wanted = event.target.value.toLowerCase();
  for (const row of document.querySelectorAll("table.steps tr.runs, table.steps tr.frozen"))
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
document.addEventListener("click", (event) => {
  const head = event.target.closest("th.sorts");
  if (!head) return;
  const column = [...head.parentNode.children].indexOf(head);
  const body = head.closest("table").tBodies[0];
  const key = (row) => {
    const cell = row.children[column];
    const number = parseFloat(cell.dataset.value ?? cell.textContent);
    return Number.isNaN(number) ? cell.textContent : number;
  };
  const rows = [...body.rows].slice(1);
  const down = head.dataset.down !== "yes";
  head.dataset.down = down ? "yes" : "no";
  rows.sort((a, b) => (key(a) < key(b) ? 1 : key(a) > key(b) ? -1 : 0) * (down ? 1 : -1));
  for (const row of rows) body.append(row);
});
"""


def policy() -> str:
    """What a browser lets the page do: its own style and this one script, nothing from elsewhere."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def text(value: Any) -> str:
    """Anything as what a browser shows literally."""
    printable = "".join(
        c if c in "\n\t" or (ord(c) >= 32 and not 0xD800 <= ord(c) < 0xE000) else "\ufffd" for c in str(value)
    )
    return html.escape(printable, quote=True)


_TOKENS = re.compile(
    r"(?P<c>//[^\n]*|\#[^\n]*|/\*.*?\*/)|(?P<s>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|(?P<k>\b(?:for|if|else|return|while|const|auto|static|inline|void|float|double|int|int32_t|int64_t|uint32_t|bool"
    r"|extern|template|typename|struct|using|constexpr|def|import|from|as|in|not|and|or|None|True|False)\b)"
    r"|(?P<d>\b\d[\w.]*)",
    re.S,
)


def highlighted(source: str) -> str:
    """C++ or Python with its words in colours."""
    out, at = [], 0
    for m in _TOKENS.finditer(source):
        out.append(text(source[at : m.start()]))
        out.append(f"<span class={m.lastgroup}>{text(m.group())}</span>")
        at = m.end()
    return "".join([*out, text(source[at:])])
