"""What changes the class of a module (parametrizations, fully_shard, a `__class__` assignment) changes that of a
compiled one and its original together: both go on working."""

# process: fresh
import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import flashover

x = torch.randn(2, 4)
for register in (parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal):
    m = nn.Linear(4, 4).eval()
    c = flashover.compile(m)
    c(x)
    register(c)
    c.eval()
    assert parametrize.is_parametrized(c)
    assert parametrize.is_parametrized(m)
    assert torch.allclose(c(x), m(x), atol=1e-6)
    assert torch.equal(c.weight, m.weight)
    c(x).sum().backward()
    parametrize.remove_parametrizations(m, "weight")
    assert torch.allclose(c(x), m(x), atol=1e-6)
    assert c.__class__ is nn.Linear


class Other(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.shift()

    def shift(self) -> float:
        return 2.0


m = nn.Linear(4, 4)
c = flashover.compile(m)
want = c(x) + 2
c.__class__ = Other
assert type(m) is Other
assert c.shift() == 2.0
assert torch.allclose(c(x), want)
try:
    c.__class__ = dict
except TypeError:
    pass
else:
    raise AssertionError("dict is no class for a module")
assert torch.allclose(c(x), want)
assert type(m) is Other

with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
dist.init_process_group("gloo", rank=0, world_size=1)
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: E402

m = nn.Sequential(nn.Linear(4, 4))
want = m(x)
c = flashover.compile(m)
sharded = fully_shard(c, mesh=init_device_mesh("cpu", (1,)))
assert sharded is c
assert isinstance(c, FSDPModule)
c.unshard()
assert torch.allclose(c(x), want, atol=1e-6)
c(x).sum().backward()
dist.destroy_process_group()
