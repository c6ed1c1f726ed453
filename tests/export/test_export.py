"""flashover.export: calls captured whole, as ExportedPrograms that serve other sizes and survive torch's own tools."""

import copy
import io

import pytest
import torch
import torch.utils._pytree as pytree
from torch.export import Dim

import flashover
from flashover import exc


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.tied = self.lin
        self.register_buffer("calls", torch.zeros(3), persistent=False)

    def forward(self, x, scale=2, *, more=None):
        self.calls.add_(1)
        z = self.norm(self.tied(x)) * scale
        return {
            "sum": z + more["k"],
            "flat": z.reshape(-1),
            "given": x,
            "plain": (None, 3),
            "k": torch.tensor([1.0, 2.0]),
        }


def call_of(n):
    return (torch.randn(n, 4),), {"more": {"k": torch.randn(n, 3)}}


def assert_same(got, want):
    (a, spec), (b, other) = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert spec == other
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y) if isinstance(y, torch.Tensor) else x == y


def exported_net():
    batch = Dim("batch", max=100)
    shapes = {"x": {0: batch}, "more": {"k": {0: batch}}}
    model = Net()
    return model, flashover.export(model, *call_of(5), dynamic_shapes=shapes)


def test_the_program_serves_other_sizes_and_writes_buffers_as_the_model_does():
    model, program = exported_net()
    assert torch.equal(model.calls, torch.zeros(3)), "the export wrote a buffer"
    want, got = copy.deepcopy(model), program.module()
    for n in (5, 9, 2):
        args, kwargs = call_of(n)
        assert_same(got(*args, **kwargs), want(*args, **kwargs))
    assert torch.equal(got.get_buffer("norm.running_mean"), want.norm.running_mean)
    assert torch.equal(got.get_buffer("calls"), torch.full((3,), 3.0))


def test_the_signature_names_all_state_and_the_leaves_of_the_arguments():
    _, program = exported_net()
    signature = program.graph_signature
    assert set(signature.parameters) == {"lin.weight", "lin.bias", "norm.weight", "norm.bias"}
    assert set(signature.buffers) == {"calls", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert signature.non_persistent_buffers == ("calls",)
    assert signature.user_inputs == ("x", "more_k")
    assert "tied.weight" in program.state_dict and "calls" not in program.state_dict
    (bounds,) = program.range_constraints.values()
    assert int(bounds.upper) == 100


def test_decompositions_find_the_written_buffers():
    model, program = exported_net()
    core = program.run_decompositions()
    assert {"calls", "norm.running_mean"} <= set(core.graph_signature.buffers_to_mutate.values())
    want = copy.deepcopy(model)
    args, kwargs = call_of(7)
    torch.testing.assert_close(core.module()(*args, **kwargs)["sum"], want(*args, **kwargs)["sum"])


def test_saved_loaded_and_unflattened():
    model, program = exported_net()
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    args, kwargs = call_of(6)
    assert_same(loaded.module()(*args, **kwargs), copy.deepcopy(model)(*args, **kwargs))
    assert {"lin", "norm"} <= {name for name, _ in torch.export.unflatten(program).named_children()}


def test_sizes_that_the_program_was_not_captured_for_are_errors():
    _, program = exported_net()
    args, kwargs = call_of(1)  # the model itself raises: batch norm in training wants more than one value
    with pytest.raises(RuntimeError, match="captured for sizes with"):
        program.module()(*args, **kwargs)


def test_a_size_that_must_change_and_is_taken_for_a_number():
    def f(x):
        return x + torch.ones(3)

    with pytest.raises(exc.ExportError, match="constant 3"):
        flashover.export(f, (torch.randn(3),), dynamic_shapes={"x": {0: Dim("n")}})
    program = flashover.export(f, (torch.randn(3),), dynamic_shapes={"x": {0: Dim.AUTO}})
    assert program.range_constraints == {}


def test_sizes_in_relation():
    half = Dim("half", min=2, max=50)

    def f(x, y):
        return torch.cat([x, x]) * y

    program = flashover.export(f, (torch.randn(4), torch.randn(8)), dynamic_shapes={"x": {0: half}, "y": {0: 2 * half}})
    x, y = torch.randn(6), torch.randn(12)
    assert torch.equal(program.module()(x, y), f(x, y))
    with pytest.raises((RuntimeError, AssertionError)):
        program.module()(x, torch.randn(8))
    with pytest.raises(exc.ExportError):
        other = Dim("other")
        flashover.export(f, (torch.randn(4), torch.randn(8)), dynamic_shapes={"x": {0: half}, "y": {0: other}})


def test_shapes_collection_and_additional_inputs():
    def f(a, b):
        return a["x"] * 2 + b.sum()

    x, b = torch.randn(3, 4), torch.randn(5)
    shapes = flashover.ShapesCollection()
    shapes[x] = {0: Dim.DYNAMIC}
    program = flashover.export(f, ({"x": x}, b), dynamic_shapes=shapes)
    more = torch.randn(7, 4)
    assert torch.equal(program.module()({"x": more}, b), f({"x": more}, b))
    inputs = flashover.AdditionalInputs()
    inputs.add(({"x": torch.randn(8, 4)}, torch.randn(9)))
    program = flashover.export(f, ({"x": x}, b), dynamic_shapes=inputs)
    c = torch.randn(11)
    assert torch.equal(program.module()({"x": more}, c), f({"x": more}, c))


def test_every_problem_is_named_with_its_line_and_what_helps():
    def f(x):
        y = x + 1
        if y.sum() > 0:
            y = y * 2
        print("here")
        return y

    with pytest.raises(exc.ExportError) as error:
        flashover.export(f, (torch.ones(3),))
    assert len(error.value.problems) == 2
    first = f.__code__.co_firstlineno
    for problem, line, help_text in zip(
        error.value.problems, (first + 2, first + 4), ("torch.where", "Move it"), strict=True
    ):
        assert f"test_export.py:{line}" in problem and help_text in problem


def test_what_runs_may_not_depend_on_what_a_tensor_holds():
    def f(x, n):
        return x * 2 if n.item() == 1 else x

    with pytest.raises(exc.ExportError, match=r"whether u0 == 1 follows from data|value of a traced tensor"):
        flashover.export(f, (torch.randn(3), torch.tensor(1)))


def test_python_objects_that_are_written():
    class Counting(torch.nn.Module):
        seen = 0

        def forward(self, x):
            self.seen += 1
            return x + self.seen

    model = Counting()
    with pytest.raises(exc.ExportError, match="seen"):
        flashover.export(model, (torch.ones(2),))
    with pytest.warns(UserWarning, match="leaves out"):
        program = flashover.export(model, (torch.ones(2),), strict=False)
    assert model.seen == 0
    assert torch.equal(program.module()(torch.ones(2)), torch.full((2,), 2.0))


def test_arguments_and_results_that_are_no_tensors():
    class Box:
        pass

    with pytest.raises(exc.ExportError, match="the argument b is a Box"):
        flashover.export(lambda b: b.x, (Box(),))

    def boxed(x):
        box = Box()
        box.x = x * 2
        return [box]

    with pytest.raises(exc.ExportError, match=r"the result\[0\] is a Box"):
        flashover.export(boxed, (torch.ones(2),))


def test_a_result_that_is_a_size_is_no_constant():
    with pytest.raises(exc.ExportError, match="follows from sizes"):
        flashover.export(lambda x: (x * 2, x.shape[0] * 3), (torch.ones(4),), dynamic_shapes=[{0: Dim("n")}])


def test_equal_tensors_are_arguments_of_their_own():
    def f(q, k):
        return q - k if q is k else q + k

    x = torch.randn(3)
    program = flashover.export(f, (x, x))
    assert torch.equal(program.module()(x, torch.ones(3)), x + 1)


def test_all_sizes_that_are_not_as_dynamic_shapes_has_them_are_in_one_error():
    def f(x, y, z):
        if x.shape[0] == 5:
            x = x + 1
        if y.shape[1] == 3:
            y = y + 1
        return x, y, z + z.new_ones(2)

    shapes = {"x": {0: Dim("a"), 1: Dim("d", min=7)}, "y": {0: Dim("b"), 1: Dim("c")}, "z": {0: Dim("e")}}
    with pytest.raises(exc.ExportError) as raised:
        flashover.export(f, (torch.ones(5, 6), torch.ones(4, 3), torch.ones(2)), dynamic_shapes=shapes)
    problems = raised.value.problems
    assert len(problems) == 4, problems
    for place in ("x.shape[0]", "x.shape[1]", "y.shape[1]", "z.shape[0]"):
        assert any(p.startswith(f"{place} is to change, but ") for p in problems), (place, problems)
    line = next(p for p in problems if p.startswith("x.shape[0]"))
    assert "test_export.py:" in line and "if x.shape[0] == 5:" in line and "Dim.STATIC" in line
    assert "other bounds" in next(p for p in problems if p.startswith("x.shape[1]"))


class Moved(torch.nn.Module):
    def __init__(self, persistent):
        super().__init__()
        self.register_buffer("table", torch.arange(3.0), persistent=persistent)

    def forward(self, x):
        self.table = self.table.to(x.device)  # which writes the names of buffers that are not saved, too
        return x + self.table


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_that_is_set_to_itself(persistent):
    program = flashover.export(Moved(persistent), (torch.ones(3),))
    assert torch.equal(program.module()(torch.zeros(3)), torch.arange(3.0))


class Renaming(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.names = {"a"}

    def forward(self, x):
        self.names.discard("a")
        return x + 1


def test_a_set_that_changes_is_a_problem():
    with pytest.raises(exc.ExportError, match=r"changes the contents of self\.names"):
        flashover.export(Renaming(), (torch.ones(3),))


class Padded(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 4))


def test_padding_by_what_follows_from_a_size(tmp_path):
    program = flashover.export(Padded(), (torch.ones(2, 6, 3),), dynamic_shapes={"x": {1: Dim.AUTO}})
    flashover.package(program, tmp_path / "p.flash")
    for call in (program.module(), flashover.load(tmp_path / "p.flash")):
        for n in (5, 8, 9):
            assert torch.equal(call(torch.ones(2, n, 3)), Padded()(torch.ones(2, n, 3)))


def test_facts_that_follow_from_the_bounds_are_no_constraints() -> None:
    """torch's range of n - (n + 1) // 2 starts below what it is for each n from 4 on."""
    program = flashover.export(
        lambda x: x.chunk(2, 1)[0] * 2, (torch.randn(2, 8),), dynamic_shapes=[{1: Dim("w", min=4, max=32)}]
    )
    for width in (4, 7, 32):
        x = torch.randn(2, width)
        torch.testing.assert_close(program.module()(x), x.chunk(2, 1)[0] * 2)


def test_transformer_layers_over_changing_sizes() -> None:
    """Their fast path, which eager takes here, is one operator that torch's fake tensors have no rule for."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    batch, length = Dim("batch", min=2, max=16), Dim("length", min=2, max=16)
    mask = torch.tensor([[False, False, True], [False, True, True]])
    program = flashover.export(
        layer,
        (torch.randn(2, 3, 8),),
        {"src_key_padding_mask": mask},
        dynamic_shapes={"src": {0: batch, 1: length}, "src_key_padding_mask": {0: batch, 1: length}},
    )
    x, keys = torch.randn(4, 5, 8), torch.arange(5).expand(4, 5) > 3
    with torch.no_grad():
        want = layer(x, src_key_padding_mask=keys)
    torch.testing.assert_close(program.module()(x, src_key_padding_mask=keys), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.GRU(4, 6, 2, batch_first=True, bidirectional=True),
        lambda: torch.nn.GRU(4, 6, bias=False),
        lambda: torch.nn.RNN(4, 6, batch_first=True),
        lambda: torch.nn.RNN(4, 6, 2, nonlinearity="relu"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recurrent_layers_over_a_changing_batch(make, dtype, tmp_path):
    """Of a known number of steps: cell by cell."""
    model = make().to(dtype).eval()
    batch = 0 if model.batch_first else 1

    states = model.num_layers * (2 if model.bidirectional else 1)

    def call_of(n):
        sizes = (n, 5, 4) if batch == 0 else (5, n, 4)
        return torch.randn(sizes, dtype=dtype), torch.randn(states, n, 6, dtype=dtype)

    program = flashover.export(model, call_of(3), dynamic_shapes=[{batch: Dim("n")}, {1: Dim("n")}])
    flashover.package(program, tmp_path / "recurrent.flash")
    for f in (program.module(), flashover.load(tmp_path / "recurrent.flash")):
        for n in (2, 3, 7):
            call = call_of(n)
            torch.testing.assert_close(f(*call), model(*call))
