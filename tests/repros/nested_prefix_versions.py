"""A module in a compiled child gets the version that torch.compile's checkpoint of the parent has for it."""

# open: docs/limits.md
from torch import nn

import flashover

seen = []


class Versioned(nn.Linear):
    _version = 7

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        seen.append(local_metadata.get("version"))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def holder(compile) -> nn.Module:
    return nn.Sequential(compile(nn.Sequential(Versioned(2, 2))))


saved = holder(lambda m: m).state_dict()
metadata = {k.replace("0", "0._orig_mod", 1): v for k, v in saved._metadata.items()}
prefixed = type(saved)((k.replace("0", "0._orig_mod", 1), v) for k, v in saved.items())
prefixed._metadata = metadata
seen.clear()
holder(flashover.compile).load_state_dict(prefixed)
assert seen == [7]
