# Unit tests of a build for another architecture, in an emulator. Debian's GoogleTest is for this machine; it brings its
# sources along.
enable_language(C)
add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
set(GTest_FOUND ON)

# The compilers that kernels find on PATH are those for the other architecture.
set(compilers ${CMAKE_BINARY_DIR}/compilers)
file(MAKE_DIRECTORY ${compilers})
foreach(name g++ c++)
  file(CREATE_LINK ${CMAKE_CXX_COMPILER} ${compilers}/${name} SYMBOLIC)
endforeach()
find_program(CLANG clang++)
if(CLANG)
  file(WRITE ${compilers}/clang++ "#!/bin/sh\nexec ${CLANG} --target=${CMAKE_SYSTEM_PROCESSOR}-linux-gnu \"$@\"\n")
  file(CHMOD ${compilers}/clang++ PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endif()
# What a library of torch's names is looked for by the program's environment, not by its rpath.
if(DEFINED FLASHOVER_TORCH)
  list(APPEND CMAKE_CROSSCOMPILING_EMULATOR -E
       LD_LIBRARY_PATH=/usr/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu/lib:${FLASHOVER_TORCH}/lib)
endif()
# qemu-user makes a fork of a vfork: that a program could not be started is not told to the parent.
set(FLASHOVER_TEST_ENVIRONMENT "PATH=${compilers}:$ENV{PATH};GTEST_FILTER=-ChildProcess.WhatCannotBeStartedIsDeclined")
