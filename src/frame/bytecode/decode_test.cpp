// Decoded code against Python's own module dis, over all functions of a few large modules.
#include "frame/bytecode/decode.h"

#include <gtest/gtest.h>

#include <sstream>

#include "frame/bytecode/depth.h"
#include "guards/interpreter_test.h"

namespace flashover::frame {
namespace {

// What dis says, one line each. The modules are compiled anew: nobody has run, and thereby changed, that code.
const char* kReference = R"(
import argparse, asyncio.base_events, collections, contextlib, dataclasses, dis, inspect, json.decoder, types, typing
def inside(code):
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from inside(c)
modules = argparse, asyncio.base_events, collections, contextlib, dataclasses, inspect, json.decoder, typing
long = compile('x = 0\n' + 'x = x + f(x, 1)\n' * 400, 'long.py', 'exec')  # EXTENDED_ARG, more than 1,000 units
codes = [c for m in modules for c in inside(compile(open(m.__file__).read(), m.__file__, 'exec'))] + [long]

def instructions(code):
    return '\n'.join(f'{i.offset // 2} {i.opcode} {i.arg or 0}' for i in dis.get_instructions(code))
def targets(code):
    jumps = [i for i in dis.get_instructions(code) if i.opcode in dis.hasjrel]
    return '\n'.join(f'{i.offset // 2} {i.argval // 2}' for i in jumps)
def handlers(code):
    rows = dis._parse_exception_table(code)
    return '\n'.join(f'{r.start // 2} {r.end // 2} {r.target // 2} {r.depth} {int(r.lasti)}' for r in rows)
def lines(code):
    at = {u: line for a, b, line in code.co_lines() for u in range(a // 2, b // 2)}
    return ' '.join(str(code.co_firstlineno if at.get(u) is None else at[u]) for u in range(len(code.co_code) // 2))
)";

template <typename F>
std::string joined(const DecodedCode& code, F&& line, const char* between = "\n") {
  std::string out;
  for (size_t unit = 0; unit < code.instructions.size(); unit += 1 + code.instructions[unit].skip) {
    const std::string text = line(static_cast<int>(unit), code.instructions[unit]);
    if (!text.empty()) out += (out.empty() ? "" : between) + text;
  }
  return out;
}
std::string instructions(const DecodedCode& code) {
  return joined(code, [](int unit, const BytecodeInstruction& in) {
    return std::to_string(unit) + " " + std::to_string(in.op) + " " + std::to_string(in.arg);
  });
}
std::string targets(const DecodedCode& code) {
  return joined(code, [](int unit, const BytecodeInstruction& in) {
    const Flow flow = flow_of(in, unit);
    return flow.target < 0 ? "" : std::to_string(unit) + " " + std::to_string(flow.target);
  });
}
std::string handlers(const DecodedCode& code) {
  std::ostringstream out;
  for (const Handler& h : code.handlers)
    out << (out.tellp() > 0 ? "\n" : "") << h.start << " " << h.end << " " << h.target << " " << h.depth << " "
        << h.lasti;
  return out.str();
}

struct Reference : testing::Test {
  Python py{kReference};
  PyCodeObject* code_at(int i) { return reinterpret_cast<PyCodeObject*>(py["codes[" + std::to_string(i) + "]"]); }
  int count() { return static_cast<int>(PyLong_AsLong(py["len(codes)"])); }
  std::string said(const char* what, int i) {
    return py.text(std::string(what) + "(codes[" + std::to_string(i) + "])");
  }
};

TEST_F(Reference, InstructionsJumpsAndHandlersAreThoseOfDis) {
  ASSERT_GT(count(), 500);
  for (int i = 0; i < count(); ++i) {
    const DecodedCode* code = decode(code_at(i));
    ASSERT_EQ(instructions(*code), said("instructions", i)) << py.text("codes[" + std::to_string(i) + "]");
    ASSERT_EQ(targets(*code), said("targets", i));
    ASSERT_EQ(handlers(*code), said("handlers", i));
    py.forget();
  }
}

TEST_F(Reference, LinesAreThoseOfTheTable) {
  for (int i = 0; i < count(); i += 3) {
    DecodedCode* code = decode(code_at(i));
    std::string got;
    for (int unit = 0; unit < static_cast<int>(code->instructions.size()); ++unit)
      got += (unit ? " " : "") + std::to_string(line_of(code_at(i), code, unit));
    ASSERT_EQ(got, said("lines", i));
    EXPECT_EQ(line_of(code_at(i), code, -1), code_at(i)->co_firstlineno);
    py.forget();
  }
}

// The compiler's own bound holds, something is known everywhere that a run can come, and nowhere else.
TEST_F(Reference, StacksAreNoDeeperThanTheCompilerSays) {
  for (int i = 0; i < count(); ++i) {
    const DecodedCode* code = decode(code_at(i));
    const std::vector<int32_t>* depths = stack_depths(code_at(i));
    ASSERT_EQ(depths->size(), code->instructions.size()) << py.text("codes[" + std::to_string(i) + "]");
    EXPECT_EQ(depths->front(), 0);
    for (size_t unit = 0; unit < depths->size(); ++unit) {
      ASSERT_LE((*depths)[unit], code_at(i)->co_stacksize);
      if ((*depths)[unit] < 0) continue;
      ASSERT_LE(operands_of(code->instructions[unit]), (*depths)[unit]) << unit;
    }
    py.forget();
  }
}

TEST(Decode, CodeThatRanReadsAsWritten) {
  Python py(std::string(kReference) + R"(
def f(x):
    total = 0
    for i in range(x):
        total += i * x
    return total
for _ in range(100): f(10)
)");
  const DecodedCode* code = decode(reinterpret_cast<PyCodeObject*>(py["f.__code__"]));
  EXPECT_EQ(instructions(*code), py.text("instructions(f.__code__)")) << "the interpreter specialized it";
  EXPECT_EQ(code, decode(reinterpret_cast<PyCodeObject*>(py["f.__code__"]))) << "decoded once";
}

TEST(Decode, StacksThatDisagreeAreUnknown) {
  Python py(R"(
from opcode import opmap
def code(*units):
    raw = b''.join(bytes([opmap[name], arg]) for name, arg in units)
    return (lambda: 0).__code__.replace(co_code=raw)
same = code(('RESUME', 0), ('LOAD_CONST', 0), ('POP_TOP', 0), ('JUMP_BACKWARD', 3))
grows = code(('RESUME', 0), ('LOAD_CONST', 0), ('JUMP_BACKWARD', 2))
)");
  EXPECT_EQ(*stack_depths(reinterpret_cast<PyCodeObject*>(py["same"])), (std::vector<int32_t>{0, 0, 1, 0}));
  EXPECT_TRUE(stack_depths(reinterpret_cast<PyCodeObject*>(py["grows"]))->empty());
}

TEST(Decode, TheFirstHandlerThatCoversIsTheInnermost) {
  Python py("def f():\n try:\n  try: g()\n  except A: h()\n finally: k()");
  auto* object = reinterpret_cast<PyCodeObject*>(py["f.__code__"]);
  const DecodedCode* code = decode(object);
  ASSERT_FALSE(code->handlers.empty());
  int covered = 0;
  for (int unit = 0; unit < static_cast<int>(code->instructions.size()); ++unit)
    if (const Handler* h = handler_at(*code, unit)) {
      ++covered;
      EXPECT_TRUE(h->start <= unit && unit < h->end);
    }
  EXPECT_GT(covered, 0);
  EXPECT_EQ(handler_at(*code, -1), nullptr);
}

TEST(Decode, KindsOfCode) {
  Python py(R"(
def plain(a, b): c = a; return c
def generator(): yield
async def coroutine(): pass
def peeks(): return locals()
def other_file(path): return compile('0', path, 'exec')
import json
)");
  const auto code = [&](const char* name) { return reinterpret_cast<PyCodeObject*>(py[name]); };
  EXPECT_TRUE(decode(code("generator.__code__"))->generator && !decode(code("plain.__code__"))->generator);
  EXPECT_TRUE(decode(code("coroutine.__code__"))->coroutine);
  EXPECT_TRUE(reads_its_locals(code("peeks.__code__")) && !reads_its_locals(code("plain.__code__")));
  EXPECT_TRUE(is_library(code("json.loads.__code__")) && !is_library(code("plain.__code__")));
  EXPECT_TRUE(is_library(code("other_file('/v/site-packages/torch/functional.py')")));
  EXPECT_FALSE(is_library(code("other_file('/v/site-packages/torch/nn/modules/linear.py')"))) << "a model's own layers";
  EXPECT_FALSE(is_library(code("other_file('/v/site-packages/timm/models.py')")));
  EXPECT_TRUE(is_library(code("other_file('/v/site-packages/numpy/linalg/_linalg.py')")));
  int reads = 0, writes = 0;
  for (const BytecodeInstruction& in : decode(code("plain.__code__"))->instructions) {
    reads += local_use(in, 0) == LocalUse::kReads;
    writes += local_use(in, 2) == LocalUse::kWrites;
  }
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(writes, 1);
}

}  // namespace
}  // namespace flashover::frame
