"""torch's table of operators with sample inputs. Its iterators search the whole stack for a unittest at each sample,
which costs more than our tests do; there is none to find."""

from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core

for module in (common_utils, core):
    module.extract_test_fn = lambda: None

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

__all__ = ["op_db"]

# Not deterministic or uninitialised by nature: shapes are compared, values are not.
RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "uniform", "rand_like",
    "randint_like", "randn_like",
    "randint", "randn", "multinomial", "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty",
    "new_empty_strided",
    "svd_lowrank", "pca_lowrank", "resize_", "resize_as_", "rrelu", "multi_head_attention_forward",
}  # fmt: skip


# What a trace cannot do: the answer depends on data, or torch has no shape function.
DECLINES = {
    "allclose", "argwhere", "bincount", "combinations", "corrcoef", "cov", "equal", "geqrf", "histogram",
    "histogramdd", "item",
    "linalg.lstsq", "masked_select", "nonzero", "quantile", "nanquantile", "tensor_split", "to_sparse", "unique",
    "unique_consecutive", "istft", "nn.functional.ctc_loss", "view_copy", "nn.functional.gaussian_nll_loss",
    "nn.functional.one_hot", "ormqr", "histc", "repeat_interleave",
}  # fmt: skip
