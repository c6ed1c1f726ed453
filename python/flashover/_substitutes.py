"""What stands in for torch's own functions while a call is captured.

torch's control flow operators (torch.cond, while_loop, scan ...) and flex_attention run themselves through
torch.compile in eager. Here they are written as the plain Python they mean, for the interpreter to look into. The graph
may break in any of these functions but those named _whole_...: those run for real from their start then.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from flashover import _C

_MOST_STEPS = 256  # of a loop that is written out


def _compile(model: Any = None, **_: Any) -> Any:
    """torch.compile inside of compiled code: the function is part of what is compiled already."""
    return (lambda m: m) if model is None else model


def _mark_static(t: Any, index: Any = None) -> Any:
    """torch._dynamo.mark_static in compiled code: the sizes are numbers from then on."""
    if not isinstance(t, torch.Tensor):
        return t
    sizes = t.shape if index is None else [t.shape[i] for i in ([index] if isinstance(index, int) else index)]
    dict.fromkeys(sizes)  # (a key is a number)
    return None


@contextlib.contextmanager
def _environment() -> Iterator[str]:
    yield "eager"


def _may_train(what: Any, depth: int = 0) -> bool:
    """Whether a function, or an operand of it, brings along what a gradient is wanted for."""
    if isinstance(what, torch.Tensor):
        return what.requires_grad
    if isinstance(what, torch.nn.Module):
        return any(p.requires_grad for p in what.parameters())
    if isinstance(what, types.MethodType):
        return _may_train(what.__self__)
    if isinstance(what, types.FunctionType) and depth < 3:
        return any(_may_train(c.cell_contents, depth + 1) for c in what.__closure__ or ())
    return False


class _Gate(torch.autograd.Function):
    """The tensor itself; its gradient comes through only where a branch is the one that counts: what the other one
    makes of zeros may be NaN."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, opens: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(opens)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (opens,) = ctx.saved_tensors
        return torch.where(opens, grad, torch.zeros_like(grad)), None


def _gated(operands: Sequence[Any], opens: torch.Tensor) -> Any:
    """Operands of a branch."""
    leaves, form = pytree.tree_flatten(list(operands))
    if not torch.is_grad_enabled():
        return operands
    return pytree.tree_unflatten(
        [_Gate.apply(x, opens) if isinstance(x, torch.Tensor) and x.requires_grad else x for x in leaves], form
    )


def _whole_select(pred: torch.Tensor, true_fn: Any, false_fn: Any, operands: Sequence[Any]) -> Any:
    """Both branches are computed, and one is taken; run for real, only the one that is."""
    if not torch.compiler.is_compiling():
        return true_fn(*operands) if pred else false_fn(*operands)
    start = _C.trace_position()
    holds = pred.detach().reshape(()).bool()
    yes, form = pytree.tree_flatten(true_fn(*_gated(operands, holds)))
    no, other_form = pytree.tree_flatten(false_fn(*_gated(operands, holds.logical_not())))
    if _C.has_effects_since(start) or form != other_form:
        _give_up()
    chosen = []
    for a, b in zip(yes, no, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
                _give_up()
            chosen.append(torch.where(holds, a, b))
        elif type(a) is type(b) and a == b:
            chosen.append(a)
        else:
            _give_up()
    return pytree.tree_unflatten(chosen, form)


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    if not isinstance(pred, torch.Tensor):
        return true_fn(*operands) if pred else false_fn(*operands)
    if pred.numel() != 1:
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred}.")
    if torch.is_grad_enabled() and (_may_train(true_fn) or _may_train(false_fn)):
        return true_fn(*operands) if pred else false_fn(*operands)
    return _whole_select(pred, true_fn, false_fn, operands)


def _cond_op(self: Any, pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    return _cond(pred, true_fn, false_fn, operands)


def _while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]) -> Any:
    carried = tuple(carried_inputs)
    if not cond_fn(*carried):
        return tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in carried)
    while True:
        carried = body_fn(*carried)
        if not cond_fn(*carried):
            return tuple(carried)


def _run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def _limit(steps: int) -> None:
    if steps > _MOST_STEPS:
        _give_up()


def _scan_op(
    self: Any,
    combine_fn: Callable[..., Any],
    init: Any,
    xs: Any,
    additional_inputs: Any,
    *,
    mutated_arg_indices: str = "",  # (torch 2.15: what tracers of torch have found out)
) -> Any:
    if mutated_arg_indices:
        _give_up()
    steps = xs[0].shape[0]
    _limit(steps)
    carry, rows = list(init), []
    for i in range(steps):
        out = combine_fn(*carry, *[x.select(0, i) for x in xs], *additional_inputs)
        if not isinstance(out, (list, tuple)) or any(not isinstance(o, torch.Tensor) for o in pytree.tree_leaves(out)):
            _give_up()
        flat = pytree.tree_leaves(out)
        carry = flat[: len(init)]
        rows.append(flat[len(init) :])
    return (*carry, *[torch.stack(column) for column in zip(*rows, strict=True)])


def _map_op(self: Any, f: Callable[..., Any], xs: Any, args: Any, *, mutated_arg_indices: str = "") -> Any:
    if mutated_arg_indices:
        _give_up()
    _limit(xs[0].shape[0])
    rows = [pytree.tree_flatten(f(*row, *args)) for row in zip(*[x.unbind(0) for x in xs], strict=True)]
    if any(not isinstance(o, torch.Tensor) for leaves, _ in rows for o in leaves):
        _give_up()
    return pytree.tree_unflatten(
        [torch.stack(column) for column in zip(*[r[0] for r in rows], strict=True)], rows[0][1]
    )


def _associative_scan_op(self: Any, combine_fn: Callable[..., Any], xs: Any, additional_inputs: Any) -> Any:
    """Of the form that combine_fn gives its result, as Dynamo hands it on."""
    from torch._higher_order_ops.associative_scan import generic_associative_scan

    form = pytree.tree_structure(combine_fn(*xs, *xs, *additional_inputs))
    flat = generic_associative_scan(combine_fn, xs, additional_inputs=additional_inputs)
    return pytree.tree_unflatten(flat, form)


def _flex_attention_op(
    self: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any],
    block_mask: Any,
    scale: float,
    kernel_options: Any,
    score_mod_other_buffers: Any = (),
    mask_mod_other_buffers: Any = (),
) -> Any:
    """Scores, what score_mod makes of them, and what the mask leaves: two operators with the user's between them, which
    become one kernel (src/ops/flex.cpp)."""
    rest = (score_mod, block_mask, scale, score_mod_other_buffers, mask_mod_other_buffers)
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        narrow = torch.get_autocast_dtype(kind)
        query, key, value = (x if x.dtype == torch.float64 else x.to(narrow) for x in (query, key, value))
        with torch.autocast(kind, enabled=False):
            return _flex_attention(query, key, value, *rest)
    return _flex_attention(query, key, value, *rest)


def _flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any],
    block_mask: Any,
    scale: float,
    score_buffers: Any,
    mask_buffers: Any,
) -> Any:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    batch, heads, queries = query.shape[:3]
    if batch != key.shape[0]:
        if batch <= 1 or key.shape[0] != 1:
            raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batch} and Bkv={key.shape[0]}")
        key, value = key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)
    at = [torch.arange(0, n, device=query.device) for n in (batch, heads, queries, key.shape[2])]
    # (What torch 2.15 has between them orders its own backward.)
    blocks, block = list(block_mask[2:10]), list(block_mask[-3:-1])
    scores = _FlexScores.apply(query, key, scale, blocks, block)
    score_of = _vmap_for_bhqkv(score_mod, prefix=(0,), suffix=(None,) * len(score_buffers))
    mask_of = _vmap_for_bhqkv(block_mask[-1], prefix=(), suffix=(None,) * len(mask_buffers))
    with TransformGetItemToIndex():
        mask = mask_of(*at, *mask_buffers)
        scores = score_of(scores, *at, *score_buffers)
    if mask.dtype != torch.bool:
        raise RuntimeError(f"expected condition to be a boolean tensor, but got a tensor with dtype {mask.dtype}")
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()  # (as where would beside -inf)
    out, log_sum, largest = _FlexAttend.apply(scores, mask, query, value, blocks, block)
    return out, log_sum / math.log(2), largest / math.log(2)


def _seen_by(blocks: list[Any]) -> list[Any]:
    """The lists of blocks of queries, if the mask has them: which blocks of keys are seen by."""
    return [] if blocks[4] is None else blocks[4:]


class _FlexScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, scale: float, blocks: Any, block: Any) -> Any:
        ctx.save_for_backward(query, key)
        ctx.scale, ctx.blocks, ctx.block = scale, blocks, block
        return torch.ops.flashover.flex_scores(query, key, scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        query, key = ctx.saved_tensors
        grad = grad * ctx.scale
        rows, columns = torch.ops.flashover.flex_rows, torch.ops.flashover.flex_columns
        of_query = of_key = None
        if ctx.needs_input_grad[0]:
            of_query = rows(grad, key, query, ctx.blocks[:4], ctx.block)
        if ctx.needs_input_grad[1]:
            of_key = columns(grad, query, key, _seen_by(ctx.blocks), ctx.block)
        return of_query, of_key, None, None, None


class _FlexAttend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Any, mask: Any, query: Any, value: Any, blocks: Any, block: Any) -> Any:
        out, log_sum, largest = torch.ops.flashover.flex_attend(scores, mask, query, value, blocks[:4], block)
        ctx.save_for_backward(scores, mask, value, out, log_sum)
        ctx.blocks, ctx.block = blocks, block
        ctx.mark_non_differentiable(largest)
        return out, log_sum, largest

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, grad_log_sum: torch.Tensor, _: Any) -> Any:
        scores, mask, value, out, log_sum = ctx.saved_tensors
        some = mask & (log_sum != -torch.inf).unsqueeze(-1)
        weights = torch.where(some, torch.exp(scores - log_sum.unsqueeze(-1)), 0.0)
        of_value = of_scores = None
        if ctx.needs_input_grad[3]:
            columns = torch.ops.flashover.flex_columns
            of_value = columns(weights, grad, value, _seen_by(ctx.blocks), ctx.block)
        if ctx.needs_input_grad[0]:
            of_weights = torch.ops.flashover.flex_scores(grad, value, 1.0)
            of_row = (grad.to(scores.dtype) * out.to(scores.dtype)).sum(-1) - grad_log_sum
            of_scores = weights * (of_weights - of_row.unsqueeze(-1))
        return of_scores, None, None, of_value, None, None


def _mod_index(cls: Any, tensor: torch.Tensor, indices: Any) -> torch.Tensor:
    """flex_attention's way to read captured tensors; its own backward is that of indexing."""
    return torch.ops.aten.index(tensor, indices)


def _encoder_forward(
    self: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
) -> Any:
    """TransformerEncoder leaves its nested tensors out where torch.compiler.is_compiling(): the result is to be zero
    where they would have made it so."""
    out = torch.nn.TransformerEncoder.forward(self, src, mask, src_key_padding_mask, is_causal)
    first = self.layers[0]
    if (
        src_key_padding_mask is None
        or mask is not None
        or src.dim() != 3
        or src.is_nested
        or first.training
        or not getattr(self, "use_nested_tensor", False)
        or not getattr(self, "mask_check", True)
        or not torch.backends.mha.get_fastpath_enabled()
        or torch.is_autocast_enabled()
        or (torch.is_grad_enabled() and any(p.requires_grad for p in first.parameters()))
        or not (self.norm is None or isinstance(self.norm, (torch.nn.LayerNorm, torch.nn.RMSNorm)))
    ):
        return out
    kept = src_key_padding_mask.logical_not()
    aligned = (kept.int().cummin(1).values == kept).all()
    empty = torch.zeros((), dtype=out.dtype, device=out.device)
    if self.norm is not None:
        empty = self.norm(torch.zeros(src.shape[-1], dtype=src.dtype, device=src.device))
    return torch.where((aligned & ~kept)[..., None], empty, out)


def _users_is_dynamo_compiling() -> bool:
    """What user code asks that wants to know of torch.compile; torch's own code would leave work to its tracer."""
    return torch.compiler.is_compiling()


def _optimized_module_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A module that torch.compile made: only its own bookkeeping is left out."""
    return torch.nn.Module.__call__(self, *args, **kwargs)


def _device_count() -> int:  # asks the driver; the original asks its management library through ctypes
    ask = getattr(torch._C, "_cuda_getDeviceCount", None)
    return 0 if ask is None else ask()


def _sym_eq(x: Any, y: Any) -> bool:
    """Sizes, one by one: each comparison of symbols is a check. The original folds in C, which looks at numbers."""
    if not isinstance(x, (tuple, list)) or not isinstance(y, (tuple, list)):
        return bool(x == y)
    if len(x) != len(y):
        return False
    return all(_sym_eq(a, b) for a, b in zip(x, y, strict=True))


def _check_tensor_all_with(error_type: type[Exception], cond: Any, message: Any = None) -> None:
    """A check that raises is part of the graph where a tensor, and not its .item(), decides."""
    if not isinstance(cond, torch.Tensor):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond.dtype != torch.bool:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {cond.dtype}")
    if not cond.all():
        torch._check_with(error_type, False, message)
        raise error_type


_TRACE = torch._C.DispatchKeySet(torch._C._parse_dispatch_key("Fake"))


def real_int64(values: list[int]) -> torch.Tensor:
    """A tensor of known numbers that is no part of the trace."""
    with torch._C._ExcludeDispatchKeyGuard(_TRACE):
        return torch.tensor(values, dtype=torch.int64)


def _runs(counts: list[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of steps with equally many sequences: first step, steps, sequences."""
    first = 0
    for t in range(1, len(counts) + 1):
        if t == len(counts) or counts[t] != counts[first]:
            yield first, t - first, counts[first]
            first = t


def _takes_any_lengths(data: torch.Tensor) -> bool:
    """Whether layers over packed data take its lengths as data (`trace/recurrent.cpp`)."""
    return _C.own_operators() and data.device.type == "cpu" and data.dtype in (torch.float32, torch.float64)


def _packed_by_data(steps: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of time-first steps that belong to a sequence, and how many each step has."""
    if lengths.shape[0] != steps.shape[1]:
        raise RuntimeError("another number of lengths than of sequences")  # (eager raises, in its own words)
    torch._check_tensor_all((lengths > 0) & (lengths <= steps.shape[0]))
    torch._check_tensor_all(lengths == lengths.cummin(0).values)
    longest = int(lengths[0])
    torch._check(longest <= steps.shape[0])
    present = torch.arange(longest)[:, None] < lengths[None, :]
    return steps[:longest][present], present.sum(1)


def _padded_by_data(
    sequence: Any, batch_first: bool, padding_value: float, total_length: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    data, counts, back = sequence.data, sequence.batch_sizes, sequence.unsorted_indices
    width = int(counts[0]) if back is None else back.shape[0]
    steps = counts.shape[0]
    most = steps if total_length is None else total_length
    if total_length is not None:
        torch._check(steps <= total_length)
    sequences = torch.arange(width)
    present = sequences[None, :] < counts[:, None]
    rows = (counts.cumsum(0) - counts)[:, None] + sequences[None, :]
    padded = data[torch.where(present, rows, 0)]
    outside = present.logical_not().reshape(present.shape + (1,) * (data.dim() - 1))
    padded = padded.masked_fill(outside, padding_value)
    if total_length is not None:
        padded = torch.cat([padded, data.new_full((most - steps, width, *data.shape[1:]), padding_value)])
    if batch_first:
        padded = padded.transpose(0, 1)
    lengths = present.sum(0)
    if back is None:
        return padded, lengths
    return padded.index_select(0 if batch_first else 1, back), lengths[back]


def _whole_pack_padded_sequence(
    input: torch.Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> Any:
    """What is packed is parts of the input (the operator looks at the lengths' memory)."""
    if isinstance(lengths, torch.Tensor):
        lengths = lengths.to(dtype=torch.int64)
    elif isinstance(lengths, (list, tuple)):
        # (One by one: numbers that change are operands of the graph then.)
        lengths = torch.tensor([lengths[i] for i in range(len(lengths))], dtype=torch.int64, device="cpu")
    else:
        lengths = torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    order = None
    if not enforce_sorted:
        lengths, order = torch.sort(lengths, descending=True)
        order = order.to(input.device)
        input = input.index_select(0 if batch_first else 1, order)
    if lengths.dim() != 1 or lengths.device.type != "cpu" or input.dim() < 2:
        _packs()
    if _takes_any_lengths(input):
        data, batch_sizes = _packed_by_data(input.transpose(0, 1) if batch_first else input, lengths)
        return torch.nn.utils.rnn._packed_sequence_init(data, batch_sizes, order, None)
    sizes = lengths.tolist()
    steps = input.transpose(0, 1) if batch_first else input
    falls = all(a >= b for a, b in itertools.pairwise(sizes))
    if not falls or not sizes or sizes[-1] <= 0 or sizes[0] > steps.shape[0] or len(sizes) != steps.shape[1]:
        _packs()
    counts = [sum(1 for s in sizes if s > t) for t in range(sizes[0])]
    parts = [steps[t : t + k, :n].reshape(k * n, *steps.shape[2:]) for t, k, n in _runs(counts)]
    data = torch.cat(parts)
    return torch.nn.utils.rnn._packed_sequence_init(data, torch.tensor(counts), order, None)


def _whole_pad_packed_sequence(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> Any:
    if _takes_any_lengths(sequence.data):
        return _padded_by_data(sequence, batch_first, padding_value, total_length)
    counts = sequence.batch_sizes.tolist()
    most = len(counts) if total_length is None else total_length
    if most < len(counts):
        _packs()
    data, at, parts = sequence.data, 0, []
    rest, width = data.shape[1:], counts[0]
    for _, k, n in _runs(counts):
        part = data[at : at + k * n].reshape(k, n, *rest)
        at += k * n
        if n < width:
            part = torch.cat([part, data.new_full((k, width - n, *rest), padding_value)], 1)
        parts.append(part)
    if most > len(counts):
        parts.append(data.new_full((most - len(counts), width, *rest), padding_value))
    padded = torch.cat(parts)
    if batch_first:
        padded = padded.transpose(0, 1)
    lengths = torch.tensor([sum(1 for n in counts if n > i) for i in range(width)])
    back = sequence.unsorted_indices
    if back is None:
        return padded, lengths
    return padded.index_select(0 if batch_first else 1, back), lengths[back.cpu()]


def _constrain_range(size: Any, *, min: int | None = None, max: int | None = None) -> None:
    """The operators sym_constrain_range and sym_constrain_range_for_size, which take numbers: of a size a check."""
    if min is not None:
        torch._check(size >= min)
    if max is not None:
        torch._check(size <= max)


def _assert_scalar(condition: Any, assert_msg: str) -> None:
    if not condition:
        raise RuntimeError(assert_msg)


_packs = _C.Disabled(lambda: None, "a packed sequence with such lengths")
_give_up = _C.Disabled(lambda: None, "a control flow operator whose branches or steps cannot be part of a graph")

_TABLE = {
    ("torch", "compile"): _compile,
    ("torch._dynamo.eval_frame", "OptimizedModule.__call__"): _optimized_module_call,
    ("torch.cuda", "device_count"): _device_count,
    ("torch.compiler", "is_dynamo_compiling"): _users_is_dynamo_compiling,
    ("torch", "_check_tensor_all_with"): _check_tensor_all_with,
    ("torch.fx.experimental.symbolic_shapes", "sym_eq"): _sym_eq,
    ("torch", "cond"): _cond,
    ("torch._dynamo.decorators", "mark_static"): _mark_static,
    ("torch.nn.utils.rnn", "pack_padded_sequence"): _whole_pack_padded_sequence,
    ("torch.nn.utils.rnn", "pad_packed_sequence"): _whole_pad_packed_sequence,
    ("torch._higher_order_ops.cond", "cond"): _cond,
    ("torch.nn.modules.transformer", "TransformerEncoder.forward"): _encoder_forward,
    ("torch._higher_order_ops.cond", "CondOp.__call__"): _cond_op,
    ("torch._higher_order_ops.while_loop", "while_loop"): _while_loop,
    ("torch._higher_order_ops.utils", "_maybe_compile_and_run_fn"): _run,
    ("torch._higher_order_ops.utils", "setup_compilation_env"): _environment,
    ("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"): _run,
    ("torch._higher_order_ops.scan", "ScanOp.__call__"): _scan_op,
    ("torch._higher_order_ops.map", "MapImpl.__call__"): _map_op,
    ("torch._higher_order_ops.associative_scan", "AssociativeScanOp.__call__"): _associative_scan_op,
    ("torch._higher_order_ops.flex_attention", "FlexAttentionHOP.__call__"): _flex_attention_op,
    ("torch._dynamo._trace_wrapped_higher_order_op", "ModIndex.apply"): _mod_index,
}


def diagonal_at(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """Tensor.diagonal, whose offset torch wants as a number: the main diagonal of a part."""
    along, distance = (dim2, offset) if offset >= 0 else (dim1, -offset)
    part = [slice(None)] * x.dim()
    part[along] = slice(distance, None)
    if distance >= x.shape[along]:
        dict.fromkeys((offset,))  # (a key is a number: whether it is one at all for torch)
        part[along] = slice(0, 0)
    return x[tuple(part)].diagonal(0, dim1, dim2)


def diag_embed_at(x: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """torch.diag_embed, the same way."""
    square = torch.diag_embed(x)
    padding = (offset, 0, 0, offset) if offset >= 0 else (0, -offset, -offset, 0)
    return torch.nn.functional.pad(square, padding)


def diag_at(x: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    if x.dim() == 1:
        return diag_embed_at(x, diagonal)
    return diagonal_at(x, diagonal).clone(memory_format=torch.contiguous_format)


def register() -> None:
    for (module, name), function in _TABLE.items():
        _C.substitute(module, name, function)
    aten = torch.ops.aten
    for operator in (aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default):
        _C.put_in_place(operator, _constrain_range)
    for assertion in (torch._assert_scalar, aten._assert_scalar.default):
        _C.put_in_place(assertion, _assert_scalar)
    # The first use of CUDA in a process may be in a capture; starting the driver is no part of the program.
    _C.mark(torch.cuda._lazy_init, "constant")
