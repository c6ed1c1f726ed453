# find_package(Flashover): the targets Flashover::runtime and Flashover::bare (without torch), headers
# <flashover/flashover.h> and <flashover/program.hpp>.
# CMAKE_PREFIX_PATH is what `python -m flashover runtime` prints.
get_filename_component(_flashover "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_name runtime bare)
  if(NOT TARGET Flashover::${_name})
    add_library(Flashover::${_name} SHARED IMPORTED)
    set_target_properties(Flashover::${_name} PROPERTIES
      IMPORTED_LOCATION "${_flashover}/lib/libflashover_${_name}.so"
      INTERFACE_INCLUDE_DIRECTORIES "${_flashover}/include"
      INTERFACE_COMPILE_FEATURES cxx_std_17)
  endif()
endforeach()
unset(_name)
unset(_flashover)
