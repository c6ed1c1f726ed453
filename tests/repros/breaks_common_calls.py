"""Calls that real libraries make inside of a forward are part of one graph: pickle.dumps of plain data (gpytorch),
np.meshgrid (monai), packed sequences with known lengths (every packed LSTM), dir() of a module (torchsde). A branch on
torch.equal() or on an observer's statistics decides by data, and ends the graph as it does for torch.compile."""

import pickle

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import flashover

lin, lstm = nn.Linear(8, 8), nn.LSTM(8, 8, batch_first=True)
cache = {}


def pickled_key(x):
    k = pickle.dumps({"a": (1, 2.5), "b": [None, True]})
    cache[k] = 1
    return lin(x).relu()


def meshgrid(x):
    g = np.meshgrid(np.arange(2), np.arange(3))
    return lin(x).relu() + float(g[0].size)


def packed(x):
    lengths = torch.tensor([4, 3, 2])
    h, _ = lstm(pack_padded_sequence(lin(x)[:, None].expand(-1, 4, -1), lengths, batch_first=True))
    return pad_packed_sequence(h, batch_first=True)[0]


def dir_(x):
    return lin(x) * (len([a for a in dir(np.random) if a == "rand"]))


for f in (pickled_key, meshgrid, packed, dir_):
    c = flashover.compile(f)
    before = flashover.compile_stats()
    for _ in range(4):
        x = torch.randn(3, 8)
        torch.testing.assert_close(c(x), f(x))
    made = {k: flashover.compile_stats()[k] - before[k] for k in ("graph_breaks", "recompiles")}
    assert made == {"graph_breaks": 0, "recompiles": 0}, (f.__name__, made)
assert list(cache) == [pickle.dumps({"a": (1, 2.5), "b": [None, True]})]
