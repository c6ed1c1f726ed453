# find_package(Flashover): the target Flashover::runtime, headers <flashover/flashover.h> and <flashover/program.hpp>.
# CMAKE_PREFIX_PATH is what `python -m flashover runtime` prints.
get_filename_component(_flashover "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET Flashover::runtime)
  add_library(Flashover::runtime SHARED IMPORTED)
  set_target_properties(Flashover::runtime PROPERTIES
    IMPORTED_LOCATION "${_flashover}/lib/libflashover_runtime.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_flashover}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()
unset(_flashover)
