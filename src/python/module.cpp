// The extension module: each stage binds its own part.
#include <torch/headeronly/version.h>

#include "cpu_kernels/operators.h"
#include "eager/ask_eager.h"
#include "entry/version.h"
#include "python/bind.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The compiled core of flashover; use the package flashover.";
  m.attr("__version__") = flashover::version();
  m.attr("__torch_version__") = TORCH_VERSION;  // which it is built for
  flashover::cpu::register_operators();
  {
    const pybind11::gil_scoped_release others_may_run;  // a kernel of torch's may have been replaced by one in Python
    flashover::aten::ask_eager();
  }
  flashover::bind_errors(m);
  flashover::bind_compile(m);
  flashover::bind_cache(m);
  flashover::bind_frame(m);
  flashover::bind_guards(m);
  flashover::bind_ops(m);
  flashover::bind_trace(m);
  flashover::bind_triton(m);
  flashover::bind_run(m);
  flashover::bind_entry(m);
  flashover::bind_aot(m);
}
