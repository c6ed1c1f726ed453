# Finds torch and Python by asking the interpreter that will load the extension; no find_package(Torch), whose CUDA probing
# costs seconds and fails on machines without a toolkit.
if(SKBUILD AND Python_EXECUTABLE)  # pip's own interpreter, whatever python3 on PATH is
  set(FLASHOVER_PYTHON ${Python_EXECUTABLE})
endif()
find_program(FLASHOVER_PYTHON NAMES python3 python REQUIRED)
execute_process(
  COMMAND ${FLASHOVER_PYTHON} -c "import sysconfig, importlib.metadata as m, importlib.util as u, os, sys; t = u.find_spec('torch') or sys.exit('torch is not installed for ' + sys.executable + ': pip install torch'); p = os.path.dirname(t.origin); print(';'.join([p, sysconfig.get_paths()['include'], sysconfig.get_config_var('SOABI'), sysconfig.get_config_var('LIBDIR'), sysconfig.get_config_var('LDVERSION'), m.version('torch')]))"
  OUTPUT_VARIABLE facts OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT DEFINED FLASHOVER_TORCH)  # where it is for another architecture, the build is told
  list(GET facts 0 FLASHOVER_TORCH)
endif()
list(GET facts 1 FLASHOVER_PYTHON_INCLUDE)
list(GET facts 2 FLASHOVER_PYTHON_SOABI)
if(CMAKE_CROSSCOMPILING)  # the interpreter that was asked is this machine's
  string(REPLACE ${CMAKE_HOST_SYSTEM_PROCESSOR} ${CMAKE_SYSTEM_PROCESSOR} FLASHOVER_PYTHON_SOABI ${FLASHOVER_PYTHON_SOABI})
endif()
list(GET facts 3 python_libdir)
list(GET facts 4 python_ldversion)
list(GET facts 5 torch_version)
option(FLASHOVER_ANY_TORCH "build for a torch that Flashover has not been tested with" OFF)
if(NOT FLASHOVER_ANY_TORCH AND (torch_version VERSION_LESS 2.11 OR NOT torch_version VERSION_LESS 2.16))
  message(FATAL_ERROR "Flashover is tested with torch 2.11 to 2.15, ${FLASHOVER_PYTHON} has ${torch_version}. "
    "Install one of them, or try this one with -DFLASHOVER_ANY_TORCH=ON.")
endif()
add_library(flashover_torch_headers INTERFACE)
target_include_directories(flashover_torch_headers SYSTEM INTERFACE
  ${FLASHOVER_TORCH}/include ${FLASHOVER_TORCH}/include/torch/csrc/api/include)
target_link_libraries(flashover_torch_headers INTERFACE flashover_python_headers)
# ATen's headers include those of the operators that they use instead of all of them.
target_compile_definitions(flashover_torch_headers INTERFACE AT_PER_OPERATOR_HEADERS)
add_library(flashover_torch_cpp_libs INTERFACE)
target_link_directories(flashover_torch_cpp_libs INTERFACE ${FLASHOVER_TORCH}/lib)
if(CMAKE_CROSSCOMPILING)  # libtorch.so stands on all libraries of CUDA, which are not here
  target_link_libraries(flashover_torch_cpp_libs INTERFACE torch_cpu c10)
else()
  target_link_libraries(flashover_torch_cpp_libs INTERFACE torch torch_cpu c10)
  # The libstdc++ that torch brings. A compiler that links its own statically would put a second one beside it, whose
  # locales are not those of the streams of torch's inline functions: a number in a message of TORCH_CHECK crashes.
  execute_process(
    COMMAND ${FLASHOVER_PYTHON} -c "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(next((l[l.index('/'):].strip() for l in open('/proc/self/maps') if '/libstdc++.so' in l), ''))" ${FLASHOVER_TORCH}/lib/libc10.so
    OUTPUT_VARIABLE torch_libstdcxx OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  target_link_libraries(flashover_torch_cpp_libs INTERFACE ${torch_libstdcxx})
endif()
target_link_options(flashover_torch_cpp_libs INTERFACE -Wl,--no-as-needed -Wl,-rpath,${FLASHOVER_TORCH}/lib)
add_library(flashover_torch_libs INTERFACE)
target_link_libraries(flashover_torch_libs INTERFACE torch_python flashover_torch_cpp_libs)
add_library(flashover_python_headers INTERFACE)
target_include_directories(flashover_python_headers SYSTEM INTERFACE ${FLASHOVER_PYTHON_INCLUDE})
add_library(flashover_python_embed INTERFACE)
target_link_directories(flashover_python_embed INTERFACE ${python_libdir})
target_link_libraries(flashover_python_embed INTERFACE python${python_ldversion})
target_link_options(flashover_python_embed INTERFACE -Wl,-rpath,${python_libdir})
