// loops::Kernel -> one C++ function.
//
// The outer points have linear indices and a body function runs a range of them, so that threads are a matter of the
// caller. Lanes (Kernel::vector) are written as explicit vectors: a value that depends on the lane variable is a
// vector (in `copies` parallel copies where a stage is unrolled), every other value stays a scalar and is computed at
// the loop depth that loops::depths() gives it. What is left after the last full vector is the same body once more with
// the first n lanes.
//
// facts.h decides, iteration.h makes linear indices; outer.h and row_blocks.h write the outer loops, stage.h those of a
// stage, instructions.h, accumulators.h and memory.h its body.
#include <utility>

#include "kernel/cpp/attention.h"
#include "kernel/cpp/index.h"
#include "kernel/cpp/memory.h"
#include "kernel/cpp/outer.h"
#include "kernel/cpp/row_blocks.h"
#include "kernel/kernel.h"

namespace flashover::kernel {
namespace cpp {
namespace {

// Parameters and sizes out of the job.
void declare_job(Emission& e) {
  for (size_t i = 0; i < e.k.params.size(); ++i) {
    const loops::Param& p = e.k.params[i];
    const std::string type = std::string(p.written ? "" : "const ") + memory_type(p.dtype) + "*";
    e.out.line(type + " p" + num(i) + " = (" + type + ")job->p[" + num(i) + "];");
  }
  for (size_t i = 0; i < e.k.sizes.size(); ++i) e.out.line("const long s" + num(i) + " = job->s[" + num(i) + "];");
}

// Small arrays lie on the stack; the names of those that have to be freed.
std::vector<std::string> declare_scratch(Emission& e) {
  std::vector<std::string> heap;
  for (size_t i = 0; i < e.k.scratch.size(); ++i) {
    const loops::Scratch& s = e.k.scratch[i];
    const std::string name = "r" + num(i);
    const std::string type = e.outer() ? type_name(class_of(s.dtype), true) : memory_type(s.dtype);
    const int64_t each = e.outer() ? int64_t{64} * e.iteration.unroll : info(s.dtype).bytes;
    const std::string size = index(e, s.size) + (e.outer() ? " * " + num(e.iteration.unroll) : "");
    if (s.size.is_const() && s.size.value() * each <= int64_t{64} * 1024) {
      e.out.line("alignas(64) " + type + " " + name + "[" + size + "];");
    } else {
      e.out.line(type + "* " + name + " = (" + type + "*)aligned_alloc(64, (" + size + ") * sizeof(" + type +
                 ") / 64 * 64 + 64);");
      heap.push_back(name);
    }
  }
  return heap;
}

// The text between the braces of the body function.
std::string body_text(Emission& e) {
  e.out.indent = 1;
  e.out.line("Job* job = (Job*)job_;");
  const size_t constants_at = e.out.text.size();
  declare_job(e);
  if (e.k.attention) {
    attention(e);
  } else {
    const std::vector<std::string> heap = declare_scratch(e);
    is_row_blocked(e) ? row_blocked_reduction(e) : each_linear_index(e);
    for (const std::string& name : heap) e.out.line("free(" + name + ");");
  }
  std::string constants;
  for (size_t i = 0; i < e.constants.size(); ++i)
    constants += "  const long c" + num(i) + " = job->c[" + num(i) + "];\n";
  e.out.text.insert(constants_at, constants);
  e.out.indent = 0;
  return std::exchange(e.out.text, "");
}

// What callers see: makes the job and runs the body over all linear indices, in threads where there are enough.
std::string entry_text(Emission& e, const std::string& symbol, const std::string& body_name) {
  e.in_body = false;
  e.out.line("extern \"C\" __attribute__((visibility(\"default\")))");
  e.out.open("int " + symbol + "(void* const* pointers, const long* sizes, Share share)");
  std::string constants;
  for (int64_t v : e.constants) constants += (constants.empty() ? "" : ", ") + num(v);
  if (!constants.empty()) e.out.line("static const long constants[] = {" + constants + "};");
  e.out.line(std::string("Job job = {pointers, sizes, ") + (constants.empty() ? "0" : "constants") + ", 0};");
  for (size_t i = 0; i < e.k.sizes.size(); ++i) e.out.line("const long s" + num(i) + " = sizes[" + num(i) + "];");
  const sym::Expr count = e.k.attention ? attention_tasks(e.k) : e.iteration.count;
  const std::string n = index(e, count);
  if (e.k.serial || (count.is_const() && count.value() <= 1)) {
    e.out.line("if (" + n + " > 0) " + body_name + "(&job, 0, " + n + ");");
  } else {
    const std::string work =
        e.k.attention ? attention_work(e) : n + " * (" + index(e, e.iteration.cost) + ") * " + num(e.iteration.unit);
    e.out.line("share_range(share, " + body_name + ", &job, " + n + ", " + work + ");");
  }
  e.out.line("return job.error;");
  e.out.close();
  return std::exchange(e.out.text, "");
}

}  // namespace
}  // namespace cpp

Emitted emit(const loops::Kernel& k, const Target& target) {
  cpp::Emission e(k, target);
  Emitted out;
  out.symbol = "k_" + loops::identity(k).hex().substr(0, 16);
  out.lanes = e.facts.lanes;
  const std::string body = cpp::body_text(e);
  out.body_name =
      "b_" + Hasher().text(body).number(static_cast<uint64_t>(out.lanes.width)).finish().hex().substr(0, 16);
  out.body = "static void " + out.body_name + "(void* job_, long begin, long end) {\n" + body + "}\n";
  out.entry = cpp::entry_text(e, out.symbol, out.body_name);
  return out;
}

}  // namespace flashover::kernel
