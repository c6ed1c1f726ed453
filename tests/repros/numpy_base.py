"""`.base` of an array of numpy that compiled code makes is what numpy's would be: None of an array with memory of its
own, an ndarray of a view (scipy.sparse and scikit-learn's metrics look at it)."""
# needs: scipy, sklearn
# limit: 300

import numpy as np
import torch

import flashover


def base(a):
    b = a[:3]
    return type(a.base).__name__, type(b.base).__name__, type((a * 2)[1:].base).__name__, b.base is a


def f(x):
    a = np.arange(6) + x.shape[0]
    return base(a), (a[:3].base is None or a[:3].base.size // 2)


def g(x):
    from scipy.sparse import coo_matrix

    y = (x.sum(1) > 0).numpy().astype(np.int64)
    return coo_matrix((np.ones(len(y), dtype=np.int64), (y, y)), shape=(2, 2)).toarray().tolist()


def h(x):
    from sklearn.metrics import accuracy_score, confusion_matrix, roc_auc_score

    y, p = (x.sum(1) > 0).numpy(), x[:, 0].numpy()
    return accuracy_score(y, p > 0), float(roc_auc_score(y, p)), confusion_matrix(y, p > 0).tolist()


x = torch.randn(40, 4)
for fn in (f, g, h):
    c = flashover.compile(fn)
    want = fn(x)
    for _ in range(2):
        got = c(x)
        assert got == want, (fn.__name__, got, want)
