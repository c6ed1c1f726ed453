// Functions behind functools.lru_cache: what the cache holds is asked again by the guards, and what captures and guards
// ask it does not count as calls of the program.
#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "frame/interpret/calls.h"
#include "frame/resume.h"

namespace flashover::frame {
namespace {

// A cache of which the layout is what we take it for.
LruCacheLayout* layout_of_cache(PyObject* f) {
  auto* c = reinterpret_cast<LruCacheLayout*>(f);
  Ref info = Ref::steal(PyObject_CallMethod(f, "cache_info", nullptr));
  PyErr_Clear();
  if (!info || PyTuple_GET_SIZE(info.get()) != 4) return nullptr;
  const auto is = [&](Py_ssize_t i, Py_ssize_t n) {
    PyObject* o = PyTuple_GET_ITEM(info.get(), i);
    return PyLong_CheckExact(o) && PyLong_AsSsize_t(o) == n;
  };
  const bool unlimited = PyTuple_GET_ITEM(info.get(), 2) == Py_None;
  if (!is(0, c->hits) || !is(1, c->misses) || !(unlimited ? c->maxsize < 0 : is(2, c->maxsize))) return nullptr;
  if (c->cache == nullptr || !PyDict_CheckExact(c->cache) || !is(3, PyDict_GET_SIZE(c->cache))) return nullptr;
  return c;
}

struct CallCount {
  Ref function;
  Py_ssize_t hits, misses;
};
thread_local std::vector<CallCount>* call_counts = nullptr;

// A cache finds it by its address (a logger): what the cache answers is one thing for one object.
bool is_key_by_identity(PyObject* o) {
  const KnownTypes& k = known_types();
  return Py_TYPE(o)->tp_hash == PyBaseObject_Type.tp_hash &&
         Py_TYPE(o)->tp_richcompare == PyBaseObject_Type.tp_richcompare &&
         !(k.module != nullptr && PyObject_TypeCheck(o, k.module));
}

bool has_no_hash(PyObject* o) {
  if (!PyTuple_CheckExact(o)) return Py_TYPE(o)->tp_hash == PyObject_HashNotImplemented;
  return std::any_of(&PyTuple_GET_ITEM(o, 0), &PyTuple_GET_ITEM(o, PyTuple_GET_SIZE(o)), has_no_hash);
}

// Where a function is written; empty: nobody knows.
std::string_view file_of_function(PyObject* function) {
  const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_filename);
  PyErr_Clear();
  return file != nullptr ? file : "";
}
bool is_installed(std::string_view file) { return file.find("-packages/") != file.npos; }

// A cache is asked by the values of its arguments. What a library's function computes is the same without it (the
// program's own may count its calls).
Ref behind_librarys_cache(PyObject* f) {
  Ref inner = Ref::steal(PyObject_GetAttrString(f, "__wrapped__"));
  if (!inner) PyErr_Clear();
  return inner && PyFunction_Check(inner.get()) && is_installed(file_of_function(inner.get())) ? std::move(inner)
                                                                                               : Ref();
}

}  // namespace

bool holds_tensor(PyObject* o, int depth) {
  if (depth > 4) return false;
  if (is_tensor(o)) return true;
  if (PyTuple_Check(o) || PyList_Check(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (holds_tensor(PySequence_Fast_GET_ITEM(o, i), depth + 1)) return true;
  } else if (PyDict_Check(o)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(o, &at, &key, &value))
      if (holds_tensor(value, depth + 1)) return true;
  } else if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    PyObject** dict = PyType_Check(o) ? nullptr : _PyObject_GetDictPtr(o);
    if (dict != nullptr && *dict != nullptr) return holds_tensor(*dict, depth + 1);
  }
  return false;
}

KeepCallCounts::KeepCallCounts() {
  if (call_counts == nullptr) call_counts = new std::vector<CallCount>;
}

// What was computed by the way counts as a miss, and the call that made the capture will count as a hit.
KeepCallCounts::~KeepCallCounts() {
  std::unique_ptr<std::vector<CallCount>> done(std::exchange(call_counts, nullptr));
  if (!done) return;
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  for (const CallCount& c : *done)
    if (LruCacheLayout* cache = layout_of_cache(c.function.get()))
      if (cache->misses >= c.misses) cache->hits = c.hits - (cache->misses - c.misses);  // (else it was cleared)
  PyErr_Restore(type, value, tb);
}

// What the cache holds for these arguments. Null: it is not known; the function may have to be asked.
Ref Interpreter::cached_result(PyObject* f, PyObject* const* args, size_t count, PyObject* kwnames) {
  LruCacheLayout* cache = layout_of_cache(f);
  if (cache == nullptr) return {};
  const auto same = [&](const CallCount& c) { return c.function.get() == f; };
  if (call_counts != nullptr && std::none_of(call_counts->begin(), call_counts->end(), same))
    call_counts->push_back({Ref::borrow(f), cache->hits, cache->misses});
  if (kwnames != nullptr || cache->typed || cache->maxsize == 0 || !PyFunction_Check(cache->func)) return {};
  Ref key = count == 1 && (PyLong_CheckExact(args[0]) || PyUnicode_CheckExact(args[0]))
                ? Ref::borrow(args[0])
                : Ref::steal(PyTuple_New(count));
  if (!key) return {};
  for (size_t i = 0; PyTuple_CheckExact(key.get()) && i < count; ++i)
    PyTuple_SET_ITEM(key.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
  PyObject* found = PyDict_GetItemWithError(cache->cache, key.get());
  PyErr_Clear();
  if (found != nullptr)
    return Ref::borrow(cache->maxsize < 0 ? found : reinterpret_cast<LruLinkLayout*>(found)->result);
  // The program's own: it may make tensors, or print. It runs for real before the capture does again.
  const std::string_view file = file_of_function(cache->func);
  if (file.empty() || is_installed(file) || !journal.empty() ||
      is_library(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(cache->func))))
    return {};
  Ref all = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
  first_call = Ref::steal(PyTuple_Pack(2, f, all.get()));
  throw Declined("a function with an lru_cache is called for the first time");
}

bool CallHandlers::cache_of_changing_numbers(Interpreter& in, const PythonCall& c, PyObject** result) {
  if (Py_TYPE(c.f) != known_types().lru_cache || in.session == nullptr || !in.recorder.numbers.any()) return false;
  if (std::none_of(c.args, c.args + c.count(), [&](PyObject* o) { return in.recorder.numbers.holds(o); })) return false;
  Ref inner = behind_librarys_cache(c.f);
  if (!inner) return false;
  if (!in.recorder.is_old(inner.get())) in.recorder.constant(inner.get());
  in.tail_ = c.tail;
  *result = in.call(inner.get(), c.args, c.nargs, c.kwnames);
  return true;
}

PyObject* CallHandlers::lru_cache(Interpreter& in, const PythonCall& c) {
  if (!in.recorder.is_old(c.f)) {  // a cache made during the call: what it runs and keeps is the call's own
    for (size_t i = 0; i < c.count(); ++i) in.consume(c.args[i]);
    return in.call_plain(c.f, c.args, c.nargs, c.kwnames);
  }
  bool plain = true;
  for (size_t i = 0; i < c.count(); ++i)
    plain = plain && (is_atom(c.args[i]) || (in.recorder.is_old(c.args[i]) && !is_module(c.args[i]) &&
                                             (is_pinned_kind(c.args[i]) || is_key_by_identity(c.args[i]))));
  if (plain) {
    // A hit answers from what was computed before; a miss computes and keeps it, as it would without us.
    Ref result = in.cached_result(c.f, c.args, c.count(), c.kwnames);
    const bool known = static_cast<bool>(result);
    if (!known) {
      ++in.uninterpreted;
      result = Ref::steal(in.call_plain(c.f, c.args, c.nargs, c.kwnames));
      --in.uninterpreted;
      in.stop_if_declined();
    }
    if (!result) return nullptr;
    if (known || !holds_tensor(result.get())) {
      for (size_t i = 0; i < c.count(); ++i)
        if (!is_atom(c.args[i]) && !is_pinned_kind(c.args[i]))
          in.recorder.fact(FactKind::kIdentity, in.recorder.source_of(c.args[i]), c.args[i]);
      // The guards ask the cache again: it may have been cleared.
      in.recorder.call_gives(c.f, c.args, c.count(), c.kwnames, result.get());
      if (is_tensor(result.get()) && !in.recorder.is_old(result.get())) {
        in.recorder.constant(result.get());
        in.recorder.add_tensor(result.get());
      } else if (!is_atom(result.get()) && !in.recorder.is_old(result.get())) {
        in.recorder.constant(result.get());
      }
      return result.release();
    }
    Ref cleared = Ref::steal(PyObject_CallMethod(c.f, "cache_clear", nullptr));
  }
  Ref inner = Ref::steal(PyObject_GetAttrString(c.f, "__wrapped__"));
  if (!inner) return nullptr;
  if (const LruCacheLayout* cache = layout_of_cache(c.f);
      cache != nullptr && cache->maxsize != 0 && std::any_of(c.args, c.args + c.count(), has_no_hash))
    return in.call_plain(c.f, c.args, c.nargs, c.kwnames);  // raises
  if (!in.recorder.is_old(inner.get())) in.recorder.constant(inner.get());
  return in.call(inner.get(), c.args, c.nargs, c.kwnames);
}

}  // namespace flashover::frame
