"""An option's value is checked before anything is compiled: out of its range, of another type or of an unknown name it
is a ValueError that says which option, which value and what is allowed.
"""

import torch

import flashover


def refused(options: dict, *words: str) -> None:
    try:
        flashover.compile(lambda x: x + 1, options=options)
    except ValueError as e:
        assert all(w in str(e) for w in words), str(e)
        assert len(str(e)) < 1000, "a message of reasonable length"
        return
    raise AssertionError(f"{options} was taken")


for value in (10**30, 10**5000, -1, 0, 10001):
    refused({"sub_plans": value}, "sub_plans", "1 to 10000")
for value in (101, -1, 10**18):
    refused({"memory_budget": value}, "memory_budget", "0 to 100")
refused({"recompile_limit": -1}, "recompile_limit", "0 to")
for value in (True, "3", 3.0, float("nan"), None):
    refused({"sub_plans": value}, "sub_plans", "int")
refused({"verify": 1}, "verify", "bool")
refused({"verify": "True"}, "verify", "bool")
refused({"cache_dir": 7}, "cache_dir", "str")
refused({"cache_dir": "/tmp/a\0b"}, "cache_dir", "NUL")
refused({"cache_dir": "\ud800"}, "cache_dir", "surrogate")
refused({"sub_plasn": 1}, "sub_plasn", "did you mean 'sub_plans'")
refused({"sub_plans": 2, "sub_pl-ans": 2}, "sub_pl-ans")
x = torch.randn(4, 4)
assert torch.equal(flashover.compile(lambda x: x + 1, options={"sub_plans": 10000})(x), x + 1)
