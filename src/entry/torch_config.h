// What the program set in torch's configuration (torch._dynamo.config, torch.compiler.config) and counts here, too, once
// those modules are in use. Read where a call is to be compiled, not where compiled code runs. GIL held.
#pragma once
#include <Python.h>

#include <optional>
#include <string>

namespace flashover::entry {

struct Settings;

std::optional<size_t> torchs_recompile_limit();  // recompile_limit, and where it is less accumulated_recompile_limit
bool recompiling_is_an_error();                  // error_on_recompile
bool recompile_limit_is_an_error();              // fail_on_recompile_limit_hit
bool torch_compiles_nothing();                   // disable
bool torch_fixes_parameters();                   // force_parameter_static_shapes
bool torch_fixes_ints();                         // specialize_int
bool backends_may_fail();                        // suppress_errors
std::string torchs_sources(const char* name);    // dynamic_sources, unbacked_sources

// compile(dynamic=...); where that says nothing, what assume_static_by_default and automatic_dynamic_shapes say.
std::optional<bool> dynamic_of(const Settings& settings);

}  // namespace flashover::entry
