// The instruction loop. It stands in for CPython's evaluator on the real, linked frame: the stack, locals and
// prev_instr are the frame's own, so tracebacks, super(), warnings and sys._getframe see what they would see otherwise.
#include <algorithm>

#include "base/boundary.h"
#include "compat/opcodes.h"
#include "frame/bytecode/depth.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"
#include "frame/interpret/plain_stop.h"
#include "frame/resume.h"
#include "frame/signals.h"

namespace flashover::frame {
namespace {

constexpr int kSignalPollInterval = 256;

}  // namespace

// Puts `act` on the list of activations. Returns marks of the root's arguments that nothing has looked at yet, or null.
char* Interpreter::begin(ActiveFrame& act, _PyInterpreterFrame* frame) {
  char* arguments = nullptr;
  act.frame = frame;
  act.caller = top_;
  const bool tail = std::exchange(tail_, false);
  act.direct = tail && top_ != nullptr && frame->owner == FRAME_OWNED_BY_THREAD;
  act.to_c = !tail && top_ != nullptr &&
             (frame->owner != FRAME_OWNED_BY_GENERATOR ||
              reinterpret_cast<PyObject*>(compat::generator_of(frame)) != gathered_);
  if (top_ == nullptr) {
    act.on_path = !waypoints_.stop.empty();
    // Hooks that the backward calls have no caller here either.
    arguments = std::exchange(resumed_, false) && !untouched_.empty() ? untouched_.data() : nullptr;
  } else if (act.direct && top_->on_path) {
    act.depth = top_->depth + 1;
    act.on_path = act.depth < waypoints_.stop.size() && waypoints_.stop[top_->depth].count == top_->count;
  }
  if (act.on_path && act.depth + 1 == waypoints_.stop.size()) act.stop = waypoints_.stop.back().begin;
  top_ = &act;
  return arguments;
}

// A call instruction with `count` arguments above the callable, or above the method and its object.
PyObject* Interpreter::call_from(ActiveFrame& act, int next, PyObject** base, int count, PyObject* kwnames) {
  act.below = base;
  act.next = next;
  tail_ = true;
  const size_t nargs = static_cast<size_t>(count) - keyword_count(kwnames);
  PyObject* const callable = compat::kCallableFirst || base[0] != nullptr ? base[0] : base[1];
  const bool method = (compat::kCallableFirst ? base[1] : base[0]) != nullptr;
  PyObject* result = method ? call(callable, base + 1, nargs + 1, kwnames) : call(callable, base + 2, nargs, kwnames);
  tail_ = false;
  return result;
}

PyObject* Interpreter::call_spread_from(ActiveFrame& act, int next, PyObject** sp, const Ref& f, Ref& args,
                                        const Ref& kwargs) {
  if (!PyTuple_CheckExact(args.get())) {
    look_through(args.get());
    if (!is_iterable_argument(f.get(), args.get())) return nullptr;
    args = Ref::steal(PySequence_Tuple(args.get()));
    if (!args) return nullptr;
  }
  act.below = sp;
  act.next = next;
  tail_ = true;
  PyObject* result = call_spread(f.get(), args.get(), kwargs.get());
  tail_ = false;
  return result;
}

#define PUSH(v)             \
  do {                      \
    PyObject* pushed = (v); \
    *sp++ = pushed;         \
  } while (false)
#define PUSH_RESULT(v)               \
  do {                               \
    PyObject* made = (v);            \
    if (made == nullptr) goto error; \
    *sp++ = made;                    \
  } while (false)
#define PUSH_CALLABLE(v)                        \
  do {                                          \
    if (!compat::kCallableFirst) PUSH(nullptr); \
    PUSH(v);                                    \
    if (compat::kCallableFirst) PUSH(nullptr);  \
  } while (false)
#define PUSH_TRUTH(v) PUSH(Py_NewRef((v) ? Py_True : Py_False))
#define CHECK(status) \
  if ((status) < 0) goto error
#define POP() (*--sp)
#define POP_REF() Ref::steal(POP())
#define DROP_ALL(to) \
  while (sp > (to)) Py_XDECREF(POP())
#define TOP() (sp[-1])
#define PEEK(n) (sp[-(n)])
#define NAME(i) PyTuple_GET_ITEM(names, i)
#define LOCAL(i) compat::object_in(locals[i])
#define EXCHANGE(i, v) compat::taken_from(std::exchange(locals[i], compat::slot_with(v)))

PyObject* Interpreter::evaluate(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag, PlainRun* run) {
  PyCodeObject* const co = code_of(frame);
  DecodedCode* const code = decode(co);
  compat::Linked linked(tstate, frame);
  compat::Slot* const locals = frame->localsplus;
  PyObject** const stack = compat::stack_of(frame);
  PyObject** sp = compat::open_stack(frame);
  const BytecodeInstruction* const instructions = code->instructions.data();
  PyObject* const names = co->co_names;
  PyObject* const consts = co->co_consts;
  int pc = next_unit(frame);
  int polls = 0;
  int current = pc - 1;  // the instruction that runs; a RERAISE makes prev_instr point elsewhere
  PyObject* kwnames = nullptr;
  PyObject* result = nullptr;
  struct Entered {  // on the list of activations for as long as it runs
    Interpreter& in;
    ActiveFrame a;
    explicit Entered(Interpreter& i) : in(i) {}
    ~Entered() {
      if (!in.plain) in.top_ = a.caller;
    }
  } entered(*this);
  ActiveFrame& act = entered.a;
  char* lazy = nullptr;
  PlainStop plain_run;
  if (run == nullptr)
    lazy = begin(act, frame);
  else
    act.stop = run->least + 1;
  bool deep = Py_EnterRecursiveCall("");
  if (!deep && !compat::enter_python_call(tstate)) {
    Py_LeaveRecursiveCall();
    deep = true;
  }
  if (deep) goto leave;

  for (bool thrown = throwflag;;) try {
      if (run != nullptr && run->before) {
        PyObject* awaited = std::exchange(run->before, nullptr)();
        if (awaited == nullptr)
          thrown = true;
        else
          PUSH(awaited);
      }
      for (;;) {
        const BytecodeInstruction in = instructions[pc];
        const int arg = static_cast<int>(in.arg);
        if (thrown) {  // generator.throw(), or what the frame waited for raised: the error is set
          thrown = false;
          goto error;
        }
        if (++act.count == act.stop) {
          if (run == nullptr) {
            take_snapshot(act, pc, sp);
            throw Declined("stopped");
          }
          if (plain_run.ends_at(in.op, kwnames != nullptr, pc, sp)) {
            if (plain_run.mark >= 0) {
              DROP_ALL(plain_run.mark_sp);
              pc = plain_run.mark;
            }
            run->stopped = true;
            goto stop;
          }
          ++act.stop;
        }
        compat::stand_at(frame, pc);
        current = pc;
        pc += 1 + in.skip;
        if (gives_way && !ending_.aborted && signal_waits()) [[unlikely]] {
          abort("a signal came");
          goto error;
        }
        switch (const int op = in.op; op) {
          case NOP:
          case EXTENDED_ARG:
          case RESUME:
          case PRECALL:
            break;
          case LOAD_CLOSURE:
          case LOAD_FAST_CHECK:
          case LOAD_FAST: {
            PyObject* v = LOCAL(arg);
            if (v == nullptr) {
              unbound_local(co, arg);
              goto error;
            }
            if (lazy != nullptr && lazy[arg]) touch(static_cast<size_t>(arg), co, v);
            PUSH(Py_NewRef(LOCAL(arg)));
            break;
          }
          case LOAD_FAST_LOAD_FAST:  // the compiler knows both bound
            for (const int i : {compat::first_local_of(arg), compat::second_local_of(arg)}) {
              if (lazy != nullptr && lazy[i]) touch(static_cast<size_t>(i), co, LOCAL(i));
              PUSH(Py_NewRef(LOCAL(i)));
            }
            break;
          case LOAD_CONST:
            PUSH(Py_NewRef(PyTuple_GET_ITEM(consts, arg)));
            break;
          case LOAD_SMALL_INT:
            PUSH_RESULT(PyLong_FromLong(arg));
            break;
          case LOAD_COMMON_CONSTANT:
            PUSH(common_constant(arg));
            break;
          case STORE_FAST: {
            PyObject* old = EXCHANGE(arg, POP());
            if (lazy != nullptr) lazy[arg] = 0;
            Py_XDECREF(old);
            break;
          }
          case STORE_FAST_LOAD_FAST:
          case STORE_FAST_STORE_FAST: {
            const int one = compat::first_local_of(arg), other = compat::second_local_of(arg);
            PyObject* old = EXCHANGE(one, POP());
            if (lazy != nullptr) lazy[one] = 0;
            Py_XDECREF(old);
            if (op == STORE_FAST_STORE_FAST) {
              old = EXCHANGE(other, POP());
              if (lazy != nullptr) lazy[other] = 0;
              Py_XDECREF(old);
              break;
            }
            if (lazy != nullptr && lazy[other]) touch(static_cast<size_t>(other), co, LOCAL(other));
            PUSH(Py_NewRef(LOCAL(other)));
            break;
          }
          case DELETE_FAST: {
            PyObject* old = EXCHANGE(arg, nullptr);
            if (old == nullptr) {
              unbound_local(co, arg);
              goto error;
            }
            if (lazy != nullptr) lazy[arg] = 0;
            Py_DECREF(old);
            break;
          }
          case POP_TOP: {
            PyObject* v = POP();
            Py_XDECREF(v);  // what a context manager's method is of may be NULL
            break;
          }
          case PUSH_NULL:
            PUSH(nullptr);
            break;
          case COPY:
            PUSH(Py_NewRef(PEEK(arg)));
            break;
          case SWAP:
            std::swap(TOP(), PEEK(arg));
            break;

            // Operators.
          case UNARY_POSITIVE:
          case UNARY_NEGATIVE:
          case UNARY_INVERT: {
            Ref v = POP_REF();
            PUSH_RESULT(unary(v.get(), in.op == UNARY_NEGATIVE ? PyNumber_Negative
                                       : in.op == UNARY_INVERT ? PyNumber_Invert
                                                               : PyNumber_Positive));
            break;
          }
          case TO_BOOL: {
            Ref v = POP_REF();
            const int t = truth_before(v.get(), *code, pc);
            CHECK(t);
            PUSH_TRUTH(t);
            break;
          }
          case UNARY_NOT: {
            Ref v = POP_REF();
            const int t = truth(v.get());
            CHECK(t);
            PUSH_TRUTH(!t);
            break;
          }
          case BINARY_OP: {
            Ref b = POP_REF(), a = POP_REF();
            PUSH_RESULT(binary(a.get(), b.get(), arg));
            break;
          }
          case BINARY_SUBSCR: {
            Ref key = POP_REF(), o = POP_REF();
            PUSH_RESULT(subscript(o.get(), key.get()));
            break;
          }
          case STORE_SUBSCR: {
            Ref key = POP_REF(), o = POP_REF(), v = POP_REF();
            CHECK(set_subscript(o.get(), key.get(), v.get()));
            break;
          }
          case DELETE_SUBSCR: {
            Ref key = POP_REF(), o = POP_REF();
            CHECK(set_subscript(o.get(), key.get(), nullptr));
            break;
          }
          case COMPARE_OP: {
            if (recorder.numbers.any_of_data()) {
              constexpr int kCalled = compat::kCallableFirst ? 4 : 3;  // if it is the first argument of a call
              recorder.numbers.expected = expected_truth(sp - stack >= kCalled ? PEEK(kCalled) : nullptr, *code, pc);
            }
            Ref b = POP_REF(), a = POP_REF();
            Ref r = Ref::steal(compare(a.get(), b.get(), compat::comparison_of(arg)));
            if (!r) goto error;
            if (!compat::compares_to_bool(arg)) {
              PUSH(r.release());
              break;
            }
            const int t = truth_before(r.get(), *code, pc);
            CHECK(t);
            PUSH_TRUTH(t);
            break;
          }
          case IS_OP: {
            Ref b = POP_REF(), a = POP_REF();
            PUSH_TRUTH(is_same(*this, a, b) != (arg != 0));
            break;
          }
          case CONTAINS_OP: {
            Ref c = POP_REF(), item = POP_REF();
            const int r = contains(c.get(), item.get());
            CHECK(r);
            PUSH_TRUTH((r != 0) != (arg != 0));
            break;
          }

          // Attributes and names.
          case LOAD_ATTR: {
            PyObject* name = NAME(compat::attribute_name_of(arg));
            const bool method = compat::loads_method(arg);
            Ref o = POP_REF();
            PyObject* r = nullptr;
            if (method && load_method(*this, o.get(), name, &r) == 1) {
              PUSH(r);
              PUSH(o.release());
              break;
            }
            if (!method) r = get_attr(o.get(), name);
            if (r == nullptr) goto error;
            if (method)
              PUSH_CALLABLE(r);
            else
              PUSH(r);
            break;
          }
          case LOAD_METHOD: {
            Ref o = POP_REF();
            PyObject* r = nullptr;
            if (load_method(*this, o.get(), NAME(arg), &r) == 1) {
              PUSH(r);
              PUSH(o.release());
              break;
            }
            if (r == nullptr) goto error;
            PUSH_CALLABLE(r);
            break;
          }
          case STORE_ATTR: {
            Ref o = POP_REF(), v = POP_REF();
            CHECK(set_attr(o.get(), NAME(arg), v.get()));
            break;
          }
          case DELETE_ATTR: {
            Ref o = POP_REF();
            CHECK(set_attr(o.get(), NAME(arg), nullptr));
            break;
          }
          case LOAD_GLOBAL: {
            PyObject* v = global(frame, NAME(arg >> 1));
            if (v == nullptr) goto error;
            if (arg & 1)
              PUSH_CALLABLE(v);
            else
              PUSH(v);
            break;
          }
          case STORE_GLOBAL: {
            Ref v = POP_REF();
            CHECK(store_global(*this, frame, NAME(arg), v.get()));
            break;
          }
          case DELETE_GLOBAL:
            CHECK(delete_global(*this, frame, NAME(arg)));
            break;
          case LOAD_NAME:
            PUSH_RESULT(load_name(*this, frame, NAME(arg)));
            break;
          case STORE_NAME: {
            Ref v = POP_REF();
            CHECK(store_name(*this, frame, NAME(arg), v.get()));
            break;
          }
          case DELETE_NAME:
            CHECK(delete_name(*this, frame, NAME(arg)));
            break;
          case SETUP_ANNOTATIONS:
            CHECK(setup_annotations(*this, frame));
            break;

          // Cells.
          case MAKE_CELL: {
            if (lazy != nullptr && lazy[arg]) touch(static_cast<size_t>(arg), co, LOCAL(arg));
            PyObject* cell = PyCell_New(LOCAL(arg));
            if (cell == nullptr) goto error;
            compat::set_slot(locals[arg], cell);
            break;
          }
          case COPY_FREE_VARS:
            copy_free_variables(frame, arg);
            break;
          case LOAD_DEREF:
            PUSH_RESULT(load_cell(*this, co, LOCAL(arg), arg));
            break;
          case LOAD_CLASSDEREF:
            PUSH_RESULT(load_class_cell(*this, frame, Ref(), arg));
            break;
          case LOAD_FROM_DICT_OR_DEREF: {
            Ref names_of_class = POP_REF();
            PUSH_RESULT(load_class_cell(*this, frame, names_of_class, arg));
            break;
          }
          case STORE_DEREF: {
            Ref v = POP_REF();
            store_cell(*this, LOCAL(arg), v.get());
            break;
          }
          case DELETE_DEREF: {
            if (PyCell_GET(LOCAL(arg)) == nullptr) {
              unbound_local(co, arg);
              goto error;
            }
            store_cell(*this, LOCAL(arg), nullptr);
            break;
          }

          // Builders.
          case BUILD_TUPLE: {
            PyObject* t = PyTuple_New(arg);
            if (t == nullptr) goto error;
            for (int i = arg; i-- > 0;) PyTuple_SET_ITEM(t, i, POP());
            PUSH(t);
            break;
          }
          case BUILD_LIST: {
            PyObject* t = PyList_New(arg);
            if (t == nullptr) goto error;
            for (int i = arg; i-- > 0;) PyList_SET_ITEM(t, i, POP());
            PUSH(t);
            break;
          }
          case BUILD_SET: {
            PyObject** const items = sp - arg;
            PyObject* set = build_set(*this, items, arg);
            DROP_ALL(items);
            PUSH_RESULT(set);
            break;
          }
          case BUILD_MAP: {
            PyObject** const items = sp - 2 * arg;
            PyObject* dict = build_map(*this, items, arg);
            DROP_ALL(items);
            PUSH_RESULT(dict);
            break;
          }
          case BUILD_CONST_KEY_MAP: {
            Ref keys = POP_REF();
            PyObject** const items = sp - arg;
            PyObject* dict = build_const_key_map(keys.get(), items, arg);
            DROP_ALL(items);
            PUSH_RESULT(dict);
            break;
          }
          case BUILD_STRING: {
            PyObject** const items = sp - arg;
            PyObject* text = build_string(*this, items, arg);
            DROP_ALL(items);
            PUSH_RESULT(text);
            break;
          }
          case BUILD_SLICE: {
            Ref step = Ref::steal(arg == 3 ? POP() : nullptr);
            Ref stop = POP_REF(), start = POP_REF();
            PUSH_RESULT(PySlice_New(start.get(), stop.get(), step.get()));
            break;
          }
          case FORMAT_VALUE: {
            Ref spec = Ref::steal((arg & 4) ? POP() : nullptr);
            Ref v = POP_REF();
            PUSH_RESULT(format_value(*this, v.get(), arg & 3, spec.get()));
            break;
          }
          case FORMAT_SIMPLE:
          case FORMAT_WITH_SPEC: {
            Ref spec = Ref::steal(op == FORMAT_WITH_SPEC ? POP() : nullptr);
            Ref v = POP_REF();
            PUSH_RESULT(format_value(*this, v.get(), 0, spec.get()));
            break;
          }
          case CONVERT_VALUE: {
            Ref v = POP_REF();
            PUSH_RESULT(convert_value(*this, v.get(), arg));
            break;
          }
          case LIST_APPEND: {
            Ref v = POP_REF();
            CHECK(list_append(*this, PEEK(arg), v.get()));
            break;
          }
          case SET_ADD: {
            Ref v = POP_REF();
            CHECK(set_add(*this, PEEK(arg), v.get()));
            break;
          }
          case MAP_ADD: {
            Ref v = POP_REF(), k = POP_REF();
            CHECK(map_add(*this, PEEK(arg), k.get(), v.get()));
            break;
          }
          case LIST_EXTEND: {
            Ref v = POP_REF();
            CHECK(list_extend(*this, PEEK(arg), v.get()));
            break;
          }
          case SET_UPDATE: {
            Ref v = POP_REF();
            CHECK(set_update(*this, PEEK(arg), v.get()));
            break;
          }
          case DICT_UPDATE: {
            Ref v = POP_REF();
            CHECK(dict_update(*this, PEEK(arg), v.get()));
            break;
          }
          case DICT_MERGE: {
            Ref v = POP_REF();
            CHECK(dict_merge(*this, PEEK(arg), v.get(), PEEK(compat::callable_of_merge(arg))));
            break;
          }
          case LIST_TO_TUPLE: {
            Ref l = POP_REF();
            if (recorder.is_old(l.get())) recorder.contents(l.get());
            PUSH_RESULT(PyList_AsTuple(l.get()));
            break;
          }
          case UNPACK_SEQUENCE:
          case UNPACK_EX: {
            Ref seq = POP_REF();
            const bool ex = in.op == UNPACK_EX;
            const int before = ex ? arg & 0xFF : arg, after = ex ? arg >> 8 : -1;
            if (!unpack(*this, seq.get(), before, after, &sp)) goto error;
            break;
          }
          case MAKE_FUNCTION:
            PUSH_RESULT(make_function(*this, frame, arg, &sp));
            break;
          case SET_FUNCTION_ATTRIBUTE: {
            Ref f = POP_REF(), v = POP_REF();
            set_function_attribute(f.get(), arg, v.release());
            PUSH(f.release());
            break;
          }
          case LOAD_BUILD_CLASS:
            PUSH_RESULT(load_build_class(*this, frame));
            break;
          case LOAD_ASSERTION_ERROR:
            PUSH(Py_NewRef(PyExc_AssertionError));
            break;

          // Calls.
          case KW_NAMES:
            kwnames = PyTuple_GET_ITEM(consts, arg);
            act.names = act.count;
            break;
          case CALL: {
            PyObject** base = sp - arg - 2;
            PyObject* r = call_from(act, pc, base, arg, std::exchange(kwnames, nullptr));
            DROP_ALL(base);  // (what dies here may end the capture, at this call)
            act.names = 0;
            PUSH_RESULT(r);
            break;
          }
          case CALL_KW: {
            Ref words = POP_REF();
            PyObject** base = sp - arg - 2;
            PyObject* r = call_from(act, pc, base, arg, words.get());
            DROP_ALL(base);
            PUSH_RESULT(r);
            break;
          }
          case CALL_FUNCTION_EX: {
            Ref kwargs = Ref::steal(compat::spreads_keywords(arg) ? POP() : nullptr);
            Ref args = POP_REF();
            Ref one = POP_REF(), other = POP_REF();  // one of them is NULL
            Ref f = one ? std::move(one) : std::move(other);
            PUSH_RESULT(call_spread_from(act, pc, sp, f, args, kwargs));
            break;
          }
          case RETURN_VALUE:
            if (act.to_c) {
              Ref own = Ref::borrow(TOP());
              Py_DECREF(POP());
              PUSH_RESULT(given_to_c(co, own.get()));
            }
            result = POP();
            goto leave;

          // Jumps.
          case JUMP_FORWARD:
            pc += arg;
            break;
          case JUMP_BACKWARD:
            if (session == nullptr && ++polls % kSignalPollInterval == 0 && PyErr_CheckSignals() < 0) goto error;
            [[fallthrough]];
          case JUMP_BACKWARD_NO_INTERRUPT:
            pc -= arg;
            break;
          case POP_JUMP_FORWARD_IF_FALSE:
          case POP_JUMP_FORWARD_IF_TRUE:
          case POP_JUMP_BACKWARD_IF_FALSE:
          case POP_JUMP_BACKWARD_IF_TRUE: {
            Ref v = POP_REF();
            const bool wanted = in.op == POP_JUMP_FORWARD_IF_TRUE || in.op == POP_JUMP_BACKWARD_IF_TRUE;
            const bool forward = in.op == POP_JUMP_FORWARD_IF_FALSE || in.op == POP_JUMP_FORWARD_IF_TRUE;
            int t = truth_for_jump(v.get(), *code, pc, pc + (forward ? arg : -arg), wanted);
            if (t < 0) goto error;
            if ((t != 0) == wanted) pc += forward ? arg : -arg;
            break;
          }
          case POP_JUMP_FORWARD_IF_NONE:
          case POP_JUMP_FORWARD_IF_NOT_NONE:
          case POP_JUMP_BACKWARD_IF_NONE:
          case POP_JUMP_BACKWARD_IF_NOT_NONE: {
            Ref v = POP_REF();
            const bool wanted = in.op == POP_JUMP_FORWARD_IF_NONE || in.op == POP_JUMP_BACKWARD_IF_NONE;
            const bool forward = in.op == POP_JUMP_FORWARD_IF_NONE || in.op == POP_JUMP_FORWARD_IF_NOT_NONE;
            if ((v.get() == Py_None) == wanted) pc += forward ? arg : -arg;
            break;
          }
          case JUMP_IF_FALSE_OR_POP:
          case JUMP_IF_TRUE_OR_POP: {
            int t = truth(TOP());
            if (t < 0) goto error;
            if ((t != 0) == (in.op == JUMP_IF_TRUE_OR_POP)) {
              pc += arg;
            } else {
              Py_DECREF(POP());
            }
            break;
          }
          case POP_JUMP_IF_FALSE:
          case POP_JUMP_IF_TRUE: {
            Ref v = POP_REF();
            int t = truth_for_jump(v.get(), *code, pc, pc + arg, in.op == POP_JUMP_IF_TRUE);
            if (t < 0) goto error;
            if ((t != 0) == (in.op == POP_JUMP_IF_TRUE)) pc += arg;
            break;
          }
          case POP_JUMP_IF_NONE:
          case POP_JUMP_IF_NOT_NONE: {
            Ref v = POP_REF();
            if ((v.get() == Py_None) == (in.op == POP_JUMP_IF_NONE)) pc += arg;
            break;
          }
          case GET_ITER: {
            Ref o = POP_REF();
            PUSH_RESULT(iterator(o.get()));
            break;
          }
          case FOR_ITER: {
            PyObject* v = next(TOP());
            if (v != nullptr) {
              PUSH(v);
              break;
            }
            if (PyErr_Occurred()) goto error;
            if (!compat::kLoopsKeepIterator) Py_DECREF(POP());
            pc += arg + compat::past_end_of_loop();
            break;
          }
          case POP_ITER:
            Py_DECREF(POP());
            break;
          case GET_LEN:
            look_special(TOP(), "__len__");
            recorder.length(TOP());
            PUSH_RESULT(length_of(TOP()));
            break;

          // Generators.
          case GET_YIELD_FROM_ITER: {
            if (PyGen_CheckExact(TOP())) break;
            Ref o = POP_REF();
            PUSH_RESULT(iterator(o.get()));
            break;
          }
          case SEND: {
            Ref v = POP_REF();
            PyObject* out = nullptr;
            if (recorder.is_old(TOP())) throw Declined("an iterator from before the call is advanced");
            PySendResult status = PyIter_Send(TOP(), v.get(), &out);
            if (status == PYGEN_ERROR) goto error;
            if (status == PYGEN_RETURN) {
              if (compat::kSendDropsIterator) Py_DECREF(POP());
              pc += arg;
            }
            PUSH(out);
            break;
          }
          case YIELD_VALUE: {
            if (frame->owner != FRAME_OWNED_BY_GENERATOR) {  // the root: the real generator's frame goes on from here
              ending_.yields = true;
              take_snapshot(act, current, sp);
              throw Declined("stopped");
            }
            if (act.to_c) recorder.numbers.read_deep(TOP());
            result = POP();
            compat::close_stack(frame, sp);
            compat::go_on_at(frame, pc);
            compat::suspend(tstate, frame, linked, compat::delegates(arg));
            compat::leave_python_call(tstate);
            Py_LeaveRecursiveCall();
            return result;
          }

          // Exceptions.
          case PUSH_EXC_INFO: {
            PyObject* v = POP();
            _PyErr_StackItem* info = tstate->exc_info;
            PUSH(info->exc_value != nullptr ? info->exc_value : Py_NewRef(Py_None));
            PUSH(Py_NewRef(v));
            info->exc_value = v;
            break;
          }
          case POP_EXCEPT: {
            _PyErr_StackItem* info = tstate->exc_info;
            PyObject* old = info->exc_value;
            info->exc_value = POP();
            Py_XDECREF(old);
            break;
          }
          case CHECK_EXC_MATCH: {
            Ref type = POP_REF();
            const int r = exception_matches(*this, TOP(), type.get());
            CHECK(r);
            PUSH_TRUTH(r);
            break;
          }
          case CHECK_EG_MATCH: {
            Ref type = POP_REF(), group = POP_REF();
            Ref match, rest;
            if (!split_group(*this, group.get(), type.get(), match, rest)) goto error;
            if (match.get() != Py_None) PyErr_SetHandledException(match.get());
            PUSH(rest.release());
            PUSH(match.release());
            break;
          }
          case PREP_RERAISE_STAR: {
            Ref raised = POP_REF(), original = POP_REF();
            PUSH_RESULT(what_to_reraise(original.get(), raised.get()));
            break;
          }
          case CALL_INTRINSIC_2: {
            if (arg != 1) goto unknown;
            Ref b = POP_REF(), a = POP_REF();
            PyObject* left = what_to_reraise(a.get(), b.get());  // INTRINSIC_PREP_RERAISE_STAR
            if (left == nullptr) goto error;
            PUSH(left);
            break;
          }
          case RERAISE: {
            if (arg > 0) compat::stand_at(frame, static_cast<int>(PyLong_AsLong(PEEK(arg + 1))));
            if (!plain && act.caller != nullptr && recorder.is_old(TOP()))
              throw Declined("an exception from before the call is raised again");
            PyObject* v = POP();
            PyErr_Restore(Py_NewRef(PyExceptionInstance_Class(v)), v, PyException_GetTraceback(v));
            goto unwind;
          }
          case RAISE_VARARGS: {
            Ref cause = Ref::steal(arg == 2 ? POP() : nullptr);
            Ref exception = Ref::steal(arg >= 1 ? POP() : nullptr);
            if (raise(*this, exception.get(), cause.get())) goto unwind;
            goto error;
          }
          case BEFORE_WITH: {
            Ref manager = POP_REF();
            Ref exit;
            PyObject* value = enter_with(*this, manager.get(), exit);
            if (value == nullptr) goto error;
            PUSH(exit.release());
            PUSH(value);
            break;
          }
          case LOAD_SPECIAL: {
            Ref o = POP_REF();
            PUSH_RESULT(load_special(*this, o.get(), compat::special_name_of(arg)));
            PUSH(nullptr);  // what it is a method of is bound to it
            break;
          }
          case WITH_EXCEPT_START:
            PUSH_RESULT(compat::kExitIsMethod ? exit_with(*this, PEEK(5), PEEK(4), TOP())
                                              : exit_with(*this, PEEK(4), nullptr, TOP()));
            break;

          // Imports.
          case IMPORT_NAME: {
            Ref fromlist = POP_REF(), level = POP_REF();
            PUSH_RESULT(import_name(*this, frame, NAME(arg), fromlist.get(), level.get()));
            break;
          }
          case IMPORT_FROM: {
            PUSH_RESULT(import_from(*this, TOP(), NAME(arg)));
            break;
          }

          // Structural pattern matching.
          case MATCH_MAPPING:
          case MATCH_SEQUENCE: {
            unsigned long flag = in.op == MATCH_MAPPING ? Py_TPFLAGS_MAPPING : Py_TPFLAGS_SEQUENCE;
            PUSH(Py_NewRef(Py_TYPE(TOP())->tp_flags & flag ? Py_True : Py_False));
            break;
          }
          case MATCH_KEYS: {
            PUSH_RESULT(match_keys(*this, PEEK(2), TOP()));
            break;
          }
          case MATCH_CLASS: {
            Ref keywords = POP_REF(), type = POP_REF(), subject = POP_REF();
            PyObject* v = match_class(*this, subject.get(), type.get(), arg, keywords.get());
            if (v == nullptr && PyErr_Occurred()) goto error;
            PUSH(v != nullptr ? v : Py_NewRef(Py_None));
            break;
          }

          case RETURN_CONST:
            result = Py_NewRef(PyTuple_GET_ITEM(consts, arg));
            goto leave;
          case LOAD_FAST_AND_CLEAR:
            if (lazy != nullptr && lazy[arg]) touch(static_cast<size_t>(arg), co, LOCAL(arg));
            PUSH(EXCHANGE(arg, nullptr));
            break;
          case END_FOR:
            Py_DECREF(POP());
            if (!compat::kPython313) Py_DECREF(POP());  // a POP_TOP that follows does
            break;
          case END_SEND: {
            PyObject* v = POP();
            Py_DECREF(POP());
            PUSH(v);
            break;
          }
          case BINARY_SLICE: {
            Ref stop = POP_REF(), start = POP_REF(), o = POP_REF();
            Ref slice = Ref::steal(PySlice_New(start.get(), stop.get(), nullptr));
            PUSH_RESULT(slice ? subscript(o.get(), slice.get()) : nullptr);
            break;
          }
          case STORE_SLICE: {
            Ref stop = POP_REF(), start = POP_REF(), o = POP_REF(), v = POP_REF();
            Ref slice = Ref::steal(PySlice_New(start.get(), stop.get(), nullptr));
            if (!slice || set_subscript(o.get(), slice.get(), v.get()) < 0) goto error;
            break;
          }
          case LOAD_LOCALS:
            if (frame->f_locals == nullptr) throw Declined("no locals");
            PUSH(Py_NewRef(frame->f_locals));
            break;
          case LOAD_FROM_DICT_OR_GLOBALS: {
            Ref ns = POP_REF();
            PUSH_RESULT(load_from_dict_or_globals(*this, frame, ns.get(), NAME(arg)));
            break;
          }
          case LOAD_SUPER_ATTR: {
            Ref self = POP_REF(), cls = POP_REF(), super = POP_REF();
            PyObject* v = load_super_attr(*this, super.get(), cls.get(), self.get(), NAME(arg >> 2), (arg & 2) != 0);
            if (v == nullptr) goto error;
            if (arg & 1)
              PUSH_CALLABLE(v);
            else
              PUSH(v);
            break;
          }
          case CLEANUP_THROW: {  // sub-iterator, last value sent, exception
            PyObject* v = TOP();
            if (!PyErr_GivenExceptionMatches(v, PyExc_StopIteration)) {
              PyErr_Restore(Py_NewRef(PyExceptionInstance_Class(v)), Py_NewRef(v), PyException_GetTraceback(v));
              goto unwind;
            }
            PyObject* value = reinterpret_cast<PyStopIterationObject*>(v)->value;
            Ref keep = Ref::borrow(value != nullptr ? value : Py_None);
            for (int i = 0; i < 3; ++i) Py_DECREF(POP());
            PUSH(Py_NewRef(Py_None));
            PUSH(keep.release());
            break;
          }
          case CALL_INTRINSIC_1: {
            if (!knows_intrinsic(arg)) goto unknown;
            Ref v = POP_REF();
            PUSH_RESULT(intrinsic(arg, v.get()));
            break;
          }
          default:
          unknown:
            if (run != nullptr) {
              run->stopped = run->unknown = true;
              pc = current;
              goto stop;
            }
            throw Declined("an instruction that the interpreter does not know: opcode " + std::to_string(in.op) + ", " +
                           std::to_string(arg));
        }
        if (!old_objects.empty() && sp > stack && TOP() != nullptr) check_origin(TOP());
        if (ending_.aborted) goto error;  // native code may have swallowed the error that stopped the capture
        continue;

      error:
        if (!ending_.aborted) {
          if (session != nullptr && session->declined()) abort(session->decline_reason());
          if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "error return without exception set");
        }
        if (!ending_.aborted) {
          if (!_PyFrame_IsIncomplete(frame)) PyTraceBack_Here(PyEval_GetFrame());
        }
      unwind:
        kwnames = nullptr;
        act.names = 0;
        plain_run.mark = -1;
        const Handler* handler = ending_.aborted ? nullptr : handler_at(*code, current);
        if (handler == nullptr) {
          DROP_ALL(stack);
          goto leave;
        }
        DROP_ALL(stack + handler->depth);
        if (handler->lasti) PUSH(PyLong_FromLong(unit_of(frame)));
        PyObject *type, *value, *tb;
        PyErr_Fetch(&type, &value, &tb);
        PyErr_NormalizeException(&type, &value, &tb);
        PyException_SetTraceback(value, tb != nullptr ? tb : Py_None);
        Py_XDECREF(type);
        Py_XDECREF(tb);
        PUSH(value);
        pc = handler->target;
      }
    } catch (const std::exception& e) {
      const auto* declined = dynamic_cast<const Declined*>(&e);
      if (plain)  // none is thrown for good reason
        tell_of_exception();
      else if (declined != nullptr)
        abort(declined->reason);
      else
        abort_for(e);
      DROP_ALL(stack);
      break;
    }

stop:
  if (run != nullptr && run->stopped) {
    while (pc > 0 && instructions[pc - 1].op == EXTENDED_ARG) --pc;  // CPython must see the whole argument
    compat::go_on_at(frame, pc);
    compat::close_stack(frame, sp);
    tag_instructions(frame, *code, pc);
    Py_LeaveRecursiveCall();
    compat::leave_python_call(tstate);
    return nullptr;
  }

leave:
  if (ending_.aborted) {
    Py_CLEAR(result);
    DROP_ALL(stack);
    abort("");  // makes sure an error is set
  }
  compat::close_stack(frame, sp);
  if (!deep) Py_LeaveRecursiveCall();
  if (!deep) compat::leave_python_call(tstate);
  linked.leave();  // a frame that is being cleared must not be visible to finalizers
  finish_frame(tstate, frame);
  return result;
}

#undef PUSH
#undef PUSH_RESULT
#undef PUSH_TRUTH
#undef PUSH_CALLABLE
#undef CHECK
#undef POP
#undef POP_REF
#undef DROP_ALL
#undef TOP
#undef PEEK
#undef NAME
#undef LOCAL
#undef EXCHANGE

}  // namespace flashover::frame
