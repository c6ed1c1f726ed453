// Subscripts of tensors with numbers that change: x[i], x[:, i:i + n]. What is read is an input of its own where x is
// one; what is written is written by an operator that takes the index as data. Sizes stay as they are: the length of a
// slice is checked before each call.
#include <optional>
#include <string_view>

#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"
#include "trace/trace.h"

namespace flashover::frame {
namespace {

// An item of the subscript that moves along dimension `dim`.
struct Moving {
  size_t item = 0;
  int64_t dim = 0, length = 1;
  Ref start;
  bool slice = false;
};
struct Subscript {
  std::vector<Ref> items;
  std::vector<Moving> moving;
  int64_t ellipsis = 0;  // dimensions that it stands for
};

// -1: a symbol, whose value nobody asks for here.
std::vector<int64_t> sizes_of(PyObject* tensor) {
  std::vector<int64_t> out;
  Ref shape = Ref::steal(PyObject_GetAttrString(tensor, "shape"));
  if (!shape || !PyTuple_Check(shape.get())) throw Declined("a tensor without a shape");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape.get()); ++i) {
    PyObject* size = PyTuple_GET_ITEM(shape.get(), i);
    out.push_back(PyLong_CheckExact(size) ? PyLong_AsLongLong(size) : -1);
  }
  return out;
}

Ref integer(int64_t v) { return Ref::steal(PyLong_FromLongLong(v)); }

class Parser {
 public:
  Parser(Numbers& numbers, PyObject* tensor) : numbers_(numbers), sizes_(sizes_of(tensor)) {}

  // Nothing: not of the form, another number than one in range, or a dimension whose size is a symbol, where the number
  // may be one, too; the values decide then.
  std::optional<Subscript> parse(PyObject* key) {
    Subscript out;
    const bool tuple = PyTuple_CheckExact(key);
    const Py_ssize_t count = tuple ? PyTuple_GET_SIZE(key) : 1;
    size_t taken = 0, ellipses = 0;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* o = tuple ? PyTuple_GET_ITEM(key, i) : key;
      if (o == Py_Ellipsis)
        ++ellipses;
      else if (PyLong_CheckExact(o) || PySlice_Check(o))
        ++taken;
      else if (o != Py_None)
        return {};
      out.items.push_back(Ref::borrow(o));
    }
    if (ellipses > 1 || taken > sizes_.size()) return {};
    out.ellipsis = static_cast<int64_t>(sizes_.size() - taken);
    int64_t dim = 0;
    for (size_t i = 0; i < out.items.size(); ++i) {
      PyObject* o = out.items[i].get();
      if (o == Py_None) continue;
      if (o == Py_Ellipsis) {
        dim += out.ellipsis;
        continue;
      }
      if (numbers_.holds(o)) {
        Moving m;
        m.item = i;
        m.dim = dim;
        const int64_t size = sizes_[static_cast<size_t>(dim)];
        if (size < 0) return {};
        if (PyLong_CheckExact(o)) {
          m.start = place(o, size, false);
          if (!m.start) return {};
        } else if (!of_slice(o, size, m)) {
          return {};
        }
        out.moving.push_back(std::move(m));
      }
      ++dim;
    }
    if (out.moving.empty()) return {};
    return out;
  }

 private:
  // Counted from the front, and checked to be there.
  Ref place(PyObject* at, int64_t size, bool may_be_end) {
    int overflow = 0;
    const int64_t v = PyLong_AsLongLongAndOverflow(at, &overflow);
    if (overflow != 0 || v < -size || v > size || (v == size && !may_be_end)) return {};
    if (!numbers_.is(at)) return integer(v < 0 ? v + size : v);
    Ref zero = integer(0), end = integer(size), front = integer(-size);
    if (v < 0) {
      numbers_.compare(at, zero.get(), Py_LT);
      numbers_.compare(at, front.get(), Py_GE);
      return Ref::steal(numbers_.binary(at, end.get(), 0));
    }
    numbers_.compare(at, zero.get(), Py_GE);
    numbers_.compare(at, end.get(), may_be_end ? Py_LE : Py_LT);
    return Ref::borrow(at);
  }

  bool of_slice(PyObject* o, int64_t size, Moving& m) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    const auto plain = [&](PyObject* part) { return part == Py_None || PyLong_CheckExact(part); };
    if (!plain(s->start) || !plain(s->stop) || numbers_.is(s->step)) return false;
    if (s->step != Py_None && (!PyLong_CheckExact(s->step) || PyLong_AsLong(s->step) != 1)) return false;
    // (One length for each value is no way where a size may be a symbol.)
    const Ref front = s->start == Py_None ? integer(0) : Ref::borrow(s->start),
              end = s->stop == Py_None ? integer(size) : Ref::borrow(s->stop);
    if (numbers_.ints_are_sizes && !numbers_.constant_difference(end.get(), front.get())) return false;
    m.start = s->start == Py_None ? integer(0) : place(s->start, size, true);
    Ref stop = s->stop == Py_None ? integer(size) : place(s->stop, size, true);
    if (!m.start || !stop) return false;
    Ref length = Ref::steal(numbers_.binary(stop.get(), m.start.get(), 10));
    if (!length || !numbers_.is(m.start.get())) return false;
    m.length = PyLong_AsLongLong(length.get());
    if (m.length <= 0) return false;
    numbers_.compare(length.get(), integer(m.length).get(), Py_EQ);
    m.slice = true;
    return true;
  }

  Numbers& numbers_;
  std::vector<int64_t> sizes_;
};

// The subscript that is left when `moving` has been seen to.
Ref rest_of(const Subscript& s, bool narrowed) {
  Ref key = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(s.items.size())));
  Ref all = Ref::steal(PySlice_New(nullptr, nullptr, nullptr)), zero = integer(0);
  for (size_t i = 0; i < s.items.size(); ++i) {
    PyObject* item = s.items[i].get();
    for (const Moving& m : s.moving)
      if (m.item == i) item = narrowed && !m.slice ? zero.get() : all.get();
    PyTuple_SET_ITEM(key.get(), static_cast<Py_ssize_t>(i), Py_NewRef(item));
  }
  return key;
}

PyObject* torch_function(const char* name) {
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  Ref f = Ref::steal(torch != nullptr ? PyObject_GetAttrString(torch, name) : nullptr);
  if (!f) throw Declined("torch is not there");
  return f.release();
}

// Null with an error set.
Ref apply(const char* name, Ref args, Ref named = {}) {
  Ref f = Ref::steal(torch_function(name));
  return args ? Ref::steal(PyObject_Call(f.get(), args.get(), named.get())) : Ref();
}

bool is_plain_tensor(trace::Session* session, PyObject* o) {
  return is_tensor(o) && std::string_view(Py_TYPE(o)->tp_name) == "Tensor" && session->is_trace_tensor(o);
}

// How many dimensions an item of a subscript takes; -1: another kind of item.
int64_t dims_taken(PyObject* item) {
  if (item == Py_None || PyBool_Check(item)) return 0;
  if (PyLong_CheckExact(item) || PySlice_Check(item)) return 1;
  if (!is_tensor(item)) return -1;
  const Ref dtype = Ref::steal(PyObject_GetAttrString(item, "dtype")),
            text = Ref::steal(dtype ? PyObject_Str(dtype.get()) : nullptr);
  if (!text) throw Declined("a tensor without a dtype");
  const std::string_view name = PyUnicode_AsUTF8(text.get());
  if (name != "torch.bool" && name != "torch.uint8") return 1;
  const Ref ndim = Ref::steal(PyObject_GetAttrString(item, "ndim"));
  return ndim ? PyLong_AsLongLong(ndim.get()) : -1;
}

// x[i], where i is a size: torch chooses from such dimensions before it does anything else, and so does this, by an
// operator that takes a symbol. What the rest of the subscript is for.
struct Chosen {
  Ref part, rest;  // rest: null where nothing is left
};
Chosen choose_by_sizes(Numbers& numbers, PyObject* tensor, PyObject* key) {
  std::vector<PyObject*> items;
  for (Py_ssize_t i = 0; PyTuple_CheckExact(key) && i < PyTuple_GET_SIZE(key); ++i)
    items.push_back(PyTuple_GET_ITEM(key, i));
  if (!PyTuple_CheckExact(key)) items.push_back(key);
  Chosen out{Ref::borrow(tensor), {}};
  const auto chooses = [&](PyObject* item) { return PyLong_CheckExact(item) && numbers.is(item); };
  int64_t before = 0, behind = 0;  // dimensions of the items before an ellipsis, of those that stay behind one
  auto ellipsis = items.size();
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i] == Py_Ellipsis) ellipsis = i;
    if (items[i] != Py_Ellipsis && dims_taken(items[i]) < 0) throw Declined("an index of another kind beside a size");
    if (i < ellipsis) before += dims_taken(items[i]);
  }
  std::vector<PyObject*> left;
  for (size_t i = items.size(); i-- > 0;) {
    PyObject* item = items[i];
    const int64_t taken = item == Py_Ellipsis ? 0 : dims_taken(item);
    if (i < ellipsis) before -= taken;
    if (!chooses(item)) {
      left.insert(left.begin(), item);
      behind += taken;
      continue;
    }
    const Ref symbol = Ref::steal(numbers.symbols(item));
    out.part = Ref::steal(PyObject_CallMethod(
        out.part.get(), "select", "LO", static_cast<long long>(i < ellipsis ? before : -1 - behind), symbol.get()));
    if (!out.part) return out;
  }
  if (left.empty()) return out;
  const Ref rest = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(left.size())));
  for (size_t i = 0; i < left.size(); ++i) PyTuple_SET_ITEM(rest.get(), static_cast<Py_ssize_t>(i), Py_NewRef(left[i]));
  out.rest = Ref::steal(numbers.symbols(rest.get()));
  return out;
}

}  // namespace

PyObject* Interpreter::subscript_by_sizes(PyObject* tensor, PyObject* key) {
  Chosen chosen = choose_by_sizes(recorder.numbers, tensor, key);
  if (!chosen.part || !chosen.rest) return chosen.part.release();
  return PyObject_GetItem(chosen.part.get(), chosen.rest.get());
}

int Interpreter::set_subscript_by_sizes(PyObject* tensor, PyObject* key, PyObject* value) {
  Chosen chosen = choose_by_sizes(recorder.numbers, tensor, key);
  if (!chosen.part) return -1;
  return PyObject_SetItem(chosen.part.get(), chosen.rest ? chosen.rest.get() : Py_Ellipsis, value);
}

PyObject* Interpreter::subscript_by_number(PyObject* tensor, PyObject* key) {
  if (!narrows_inputs || recorder.varying_numbers == nullptr || session == nullptr || recorder.numbers.any_of_data() ||
      !session->is_trace_tensor(tensor) || !context.torch.inference_modes.empty())
    return nullptr;
  NarrowedInput part;
  part.base = recorder.source_of(tensor);
  if (part.base == kNoSource) return nullptr;
  auto subscript = Parser(recorder.numbers, tensor).parse(key);
  if (!subscript) return nullptr;
  std::vector<trace::Session::Narrow> now;
  for (const Moving& m : subscript->moving) {
    now.push_back({m.dim, PyLong_AsLongLong(m.start.get()), m.length});
    part.narrows.push_back({m.dim, m.length, recorder.numbers.step_of(m.start.get())});
  }
  const Ref mode = apply("is_grad_enabled", Ref::steal(PyTuple_New(0)));
  part.grad = mode.get() == Py_True;
  Ref made = Ref::steal(
      session->add_narrowed_input(tensor, now, "part " + std::to_string(narrowed_inputs.size()), part.input));
  if (!made) return nullptr;
  narrowed_inputs.push_back(std::move(part));
  recorder.specials(Py_TYPE(tensor));
  Ref rest = rest_of(*subscript, true);
  return PyObject_GetItem(made.get(), rest.get());
}

// A number that changes, which is to be stored in a tensor, as one without dimensions of that type.
Ref Interpreter::number_for(PyObject* tensor, PyObject* number) {
  Ref device = Ref::steal(PyObject_GetAttrString(tensor, "device"));
  Ref dtype = Ref::steal(device ? PyObject_GetAttrString(tensor, "dtype") : nullptr);
  if (!dtype) return {};
  Ref symbol = Ref::steal(recorder.numbers.symbols(number));
  return apply("full", Ref::steal(Py_BuildValue("(()O)", symbol.get())),
               Ref::steal(Py_BuildValue("{s:O,s:O}", "dtype", dtype.get(), "device", device.get())));
}

bool Interpreter::set_subscript_by_number(PyObject* tensor, PyObject* key, PyObject* value) {
  if (recorder.varying_numbers == nullptr || session == nullptr || recorder.numbers.any_of_data() ||
      !is_plain_tensor(session, tensor))
    return false;
  const bool of_tensor = is_tensor(value);
  if (of_tensor ? !is_plain_tensor(session, value) : !PyFloat_CheckExact(value) && !PyLong_CheckExact(value))
    return false;
  auto subscript = Parser(recorder.numbers, tensor).parse(key);
  if (!subscript || subscript->moving.size() != 1) return false;
  const Moving& m = subscript->moving.front();
  const auto attempt = [&]() -> bool {
    Ref rest = rest_of(*subscript, false);
    Ref at = Ref::steal(PyObject_GetItem(tensor, rest.get()));
    if (!at) return false;
    Ref device = Ref::steal(PyObject_GetAttrString(at.get(), "device"));
    Ref dtype = Ref::steal(PyObject_GetAttrString(at.get(), "dtype"));
    if (!device || !dtype) return false;
    int64_t dim = 0;  // of `at`
    for (size_t i = 0; i < m.item; ++i) {
      PyObject* o = subscript->items[i].get();
      dim += o == Py_Ellipsis ? subscript->ellipsis : PyLong_CheckExact(o) ? 0 : 1;
    }
    std::vector<int64_t> sizes = sizes_of(at.get());
    if (m.slice)
      sizes[static_cast<size_t>(dim)] = m.length;
    else
      sizes.erase(sizes.begin() + dim);
    Ref given = Ref::borrow(value);
    if (of_tensor) {
      Ref whose = Ref::steal(PyObject_GetAttrString(value, "device"));
      Ref type = Ref::steal(PyObject_GetAttrString(value, "dtype"));
      if (!whose || PyObject_RichCompareBool(whose.get(), device.get(), Py_EQ) != 1 ||
          sizes_of(value).size() > sizes.size())
        return false;
      if (type.get() != dtype.get()) given = Ref::steal(PyObject_CallMethod(value, "to", "O", dtype.get()));
    } else {
      given = number_for(at.get(), value);
    }
    if (!given) return false;
    Ref shape = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(sizes.size())));
    for (size_t i = 0; i < sizes.size(); ++i)
      PyTuple_SET_ITEM(shape.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(sizes[i]));
    given = Ref::steal(PyObject_CallMethod(given.get(), "expand", "(O)", shape.get()));
    if (given && !m.slice) given = Ref::steal(PyObject_CallMethod(given.get(), "unsqueeze", "L", dim));
    if (!given) return false;
    Ref start = Ref::steal(recorder.numbers.symbols(m.start.get()));
    static PyObject* const int64 = torch_function("int64");
    Ref index = apply("full", Ref::steal(Py_BuildValue("((i)O)", 1, start.get())),
                      Ref::steal(Py_BuildValue("{s:O,s:O}", "dtype", int64, "device", device.get())));
    if (index && m.length > 1) {
      Ref steps = apply("arange", Ref::steal(Py_BuildValue("(L)", m.length)),
                        Ref::steal(Py_BuildValue("{s:O}", "device", device.get())));
      index = steps ? Ref::steal(PyNumber_Add(index.get(), steps.get())) : Ref();
    }
    if (!index) return false;
    Ref done = Ref::steal(PyObject_CallMethod(at.get(), "index_copy_", "LOO", dim, index.get(), given.get()));
    return static_cast<bool>(done);
  };
  const bool done = attempt();
  if (session->declined()) throw Declined(session->decline_reason());
  if (!done) PyErr_Clear();  // eager words the error
  return done;
}

}  // namespace flashover::frame
